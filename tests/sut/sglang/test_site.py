import importlib.metadata
import importlib.util
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.sut.sglang import site

FILES = (
    "sglang/__init__.py",
    "sglang/srt/layers/attention/dsa_backend.py",
    "sglang/srt/models/llama.py",
    "sglang/kernels/jit/csrc/elementwise/copy.cuh",
    "sglang/kernels/jit/csrc/diffusion/other.cuh",
    "sglang/srt/some.so",
    "sglang-1.0.dist-info/METADATA",
)


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(site.SITE_VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let pip find one wheel; return the commands that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        wanted = next(part for part in command if part.startswith("sglang=="))
        version = wanted.removeprefix("sglang==")
        if version == "9.9":
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no such version\n")
        folder = Path(command[command.index("-d") + 1])
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / f"sglang-{version}-py3-none-any.whl", "w") as wheel:
            for name in FILES:
                wheel.writestr(name, f"{name} {version}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_site_holds_what_the_metadata_path_may_load(index: list[list[str]], tmp_path: Path) -> None:
    folder = site.build("1.0")
    assert folder == Path(".sites/sglang-1.0")
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert kept == {
        ".gitignore",
        "site.json",
        "sglang/__init__.py",
        "sglang/srt/layers/attention/dsa_backend.py",
        "sglang/kernels/jit/csrc/elementwise/copy.cuh",
    }
    manifest = json.loads((folder / "site.json").read_text())
    assert manifest["version"] == "1.0"
    assert len(manifest["wheels"]["sglang-1.0-py3-none-any.whl"]) == 64
    assert [path.name for path in (tmp_path / ".sites").iterdir()] == ["sglang-1.0"]


def test_building_again_replaces_the_site(index: list[list[str]]) -> None:
    folder = site.build("1.0")
    (folder / "left.py").write_text("")
    site.build("1.0")
    assert not (folder / "left.py").exists()
    assert (folder / "sglang/__init__.py").exists()


def test_a_gpu_site_asks_for_compiled_packages_of_its_python(index: list[list[str]]) -> None:
    folder = site.build("1.0", "gpu312")
    assert folder.name == "sglang-1.0-gpu312"
    assert {"312", "cp312", "sgl-deep-gemm==0.1.5.post1"} < set(index[0])


def test_a_failed_download_leaves_nothing_and_says_why(
    index: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.main(["--version", "9.9"]) == 2
    assert capsys.readouterr().err == "error: cannot download SGLang 9.9: no such version\n"
    assert list((tmp_path / ".sites").iterdir()) == []


def test_a_folder_that_is_no_site_is_not_overwritten(
    index: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    assert site.main(["--out", "mine"]) == 2
    assert "mine exists and is no slim site" in capsys.readouterr().err
    assert index == []


def test_the_command_reports_what_it_made(index: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert site.main(["--version", "1.0"]) == 0
    assert "SGLang 1.0 (cpu): 5 files" in capsys.readouterr().out


def test_without_any_sglang_the_error_names_the_command() -> None:
    with pytest.raises(UsageError, match="run `make sglang-site`"):
        site.locate(None)
    with pytest.raises(UsageError, match=r"no SGLang 0.1 .*SGLANG_VERSION=0.1"):
        site.locate("0.1")


def test_installed_package_comes_first_then_the_variable_then_the_folder(
    index: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site.build(site.DEFAULT_VERSION)
    assert site.locate(None).folder == tmp_path / ".sites" / f"sglang-{site.DEFAULT_VERSION}"
    named = site.build("1.0", out=tmp_path / "named")
    monkeypatch.setenv(site.SITE_VARIABLE, str(named))
    assert site.locate(None) == site.Site(named, "1.0", slim=True)
    assert site.locate(site.DEFAULT_VERSION).version == site.DEFAULT_VERSION

    class Spec:
        submodule_search_locations = (str(tmp_path / "installed" / "sglang"),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.0")
    assert site.locate(None) == site.Site(tmp_path / "installed", "2.0", slim=False)
    assert site.locate("1.0").folder == named
    Spec.submodule_search_locations = (str(named / "sglang"),)
    assert site.locate(None) == site.Site(named, "1.0", slim=True)
    Spec.submodule_search_locations = (str(tmp_path / "installed" / "sglang"),)
    with pytest.raises(UsageError, match=r"found 2.0 in .*, 1.0 in"):
        site.locate("3.0")


def test_a_gpu_prefers_the_site_with_compiled_packages(index: list[list[str]]) -> None:
    site.build("1.0")
    site.build("1.0", "gpu312")
    assert site.locate("1.0").folder.name == "sglang-1.0"
    assert site.locate("1.0", gpu=True).folder.name == "sglang-1.0-gpu312"


def test_a_variable_that_names_no_site_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(site.SITE_VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=f"{site.SITE_VARIABLE}: .* is no slim site"):
        site.locate(None)
