"""The workflows: valid, least rights, only commands that exist, and what runs where."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from harness.cli import cli
from harness.locate import CHECKOUT

FOLDER = CHECKOUT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))


def load(name: str) -> dict[str, Any]:
    loaded: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text())
    loaded["on"] = loaded.pop(True)  # YAML 1.1 reads `on` as a truth value
    return loaded


def jobs(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return list(workflow["jobs"].values())


def lines(workflow: dict[str, Any]) -> list[str]:
    return [
        line for job in jobs(workflow) for step in job["steps"] for line in step.get("run", "").splitlines()
    ]


def test_there_are_three() -> None:
    assert [file.name for file in FILES] == ["cpu.yml", "goldens.yml", "gpu.yml"]


def test_they_fit_the_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_they_may_only_read_and_end_by_themselves(file: Path) -> None:
    workflow = load(file.name)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in jobs(workflow))
    # What a person types reaches a shell through the environment, never as text of the script.
    assert not [line for line in lines(workflow) if "${{" in line]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_their_commands_exist(file: Path) -> None:
    called = [
        line.split("replay-harness ")[1].split()
        for line in lines(load(file.name))
        if "replay-harness " in line
    ]
    for words in called:
        command: click.Command = cli
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= flags
    for target in re.findall(r"\bmake ([\w-]+)", "\n".join(lines(load(file.name)))):
        assert re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), flags=re.M)


def test_every_push_is_verified_without_a_gpu() -> None:
    workflow = load("cpu.yml")
    assert {"push", "pull_request"} <= set(workflow["on"])
    assert ".ci/run" in lines(workflow)


def test_a_runner_of_ones_own_has_the_gpu_nightly_and_on_request_only() -> None:
    workflow = load("gpu.yml")
    assert set(workflow["on"]) == {"schedule", "workflow_dispatch"}  # never code of a fork
    assert [job["runs-on"] for job in jobs(workflow)] == [["self-hosted", "gpu"]]


def test_goldens_are_proposed_on_request_and_accepted_nowhere() -> None:
    assert set(load("goldens.yml")["on"]) == {"workflow_dispatch"}
    uploads = [
        step for job in jobs(load("goldens.yml")) for step in job["steps"] if "upload" in step.get("uses", "")
    ]
    assert [step["with"]["path"] for step in uploads] == ["golden/pending/"]
    for file in FILES:
        assert not re.search(r"golden (accept|update)|--golden-(accept|update)", file.read_text())
