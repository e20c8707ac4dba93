"""What the project says of itself holds: entry points, documented commands, links, tracked files."""

import re
import runpy
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import harness
from harness.case import ExtraRound, Geometry, Model
from harness.cli import cli
from harness.known import KnownFinding

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
TAGS = ("", "sh", "sh finds", "sh gpu", "sh slow", "text", "toml", "python", "json")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def documented_commands() -> list[str]:
    commands: Callable[[str], Iterator[str]] = runpy.run_path(str(ROOT / ".ci" / "commands.py"))["commands"]
    return [command for page in PAGES for command in commands(page.read_text())]


def test_all_declared_entry_points_are_installed_and_load() -> None:
    declared = project()["project"]["entry-points"]
    declared["console_scripts"] = project()["project"]["scripts"]
    for group, points in declared.items():
        installed = {point.name: point for point in entry_points(group=group)}
        for name, target in points.items():
            assert installed[name].value == target
            data = group in ("pytest11", "replay_harness.specifications")
            assert callable(installed[name].load()) or data


def test_python_and_torch_are_bounded_from_below_only() -> None:
    section = project()["project"]
    assert section["requires-python"] == ">=3.11"
    assert "torch>=2.11" in section["dependencies"]
    pinned = [name for name in section["dependencies"] if "<" in name or "==" in name]
    assert pinned == []


def test_every_pin_has_its_reason_above_it() -> None:
    blocks = (ROOT / "constraints.txt").read_text().strip().split("\n\n")[1:]
    assert len(blocks) >= 3
    for block in blocks:
        *reason, pin = block.splitlines()
        assert reason
        assert all(line.startswith("#") for line in reason)
        assert re.fullmatch(r"[\w-]+(==|<)[\d.]+", pin)


def test_the_version_is_one_and_the_changelog_knows_of_it() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", harness.__version__)
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_no_package_index_is_named() -> None:
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run"):
        assert not re.search(r"index-url|find-links|https?://\S*(pypi|simple)", (ROOT / name).read_text())


def test_a_reader_of_the_readme_needs_no_scroll_bar() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere_and_blocks_are_tagged(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target
    tags = re.findall(r"^```(.*)$", text, flags=re.M)
    assert len(tags) % 2 == 0
    assert set(tags[::2]) <= set(TAGS)
    assert set(tags[1::2]) <= {""}


def test_every_documented_command_of_the_program_parses() -> None:
    found = (re.search(r"(?:^|; )replay-harness ([^|]*)", line) for line in documented_commands())
    commands = [match[1].split() for match in found if match]
    assert len(commands) >= 5
    for arguments in commands:
        _parse(cli, arguments)


def _parse(group: click.Group, arguments: list[str]) -> None:
    context = group.make_context("replay-harness", list(arguments), resilient_parsing=False)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None
    if isinstance(command, click.Group):
        _parse(command, rest)
    else:
        present = [part for part in rest if part != "out/observations"]  # made by an earlier command
        command.make_context(name, rest if present == rest else [*present, "."])


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("case-files", Model),
        ("case-files", Geometry),
        ("case-files", ExtraRound),
        ("known-findings", KnownFinding),
    ],
)
def test_every_key_of_a_data_file_is_documented(page: str, kind: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    missing = [key for key in kind.__struct_fields__ if not re.search(rf"`(\w+\.)?{key}[`.]", text)]
    assert missing == []


def test_every_documented_make_target_exists() -> None:
    targets = {line.split()[1] for line in documented_commands() if line.startswith("make ")}
    assert {"verify", "test", "sglang-site"} <= targets
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_every_flag_of_verify_is_documented() -> None:
    page = (ROOT / "docs" / "verify.md").read_text()
    flags = {option for parameter in cli.commands["verify"].params for option in parameter.opts}
    undocumented = {flag for flag in flags if flag.startswith("--") and f"`{flag}" not in page}
    assert undocumented <= {"--cases", "--golden"}  # other names of --cases-dir and --golden-dir


def test_tracked_files_name_no_machine_and_none_is_large() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(paths) > 10
    home = re.compile(r"/(?:root|home/\w+|work)/")
    for path in paths:
        if path.is_file():
            assert path.stat().st_size <= 256 * 1024, path
            if path.suffix not in (".safetensors", ".png"):
                found = home.search(path.read_text(encoding="utf-8"))
                assert found is None, f"{path}: {found}"
