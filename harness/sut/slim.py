"""Slim sites: the part of a server's released package that its metadata path may load, made from PyPI wheels.

A server is an installed package, or a folder below `.sites/`, which git ignores, with what was unpacked of
pinned wheels. Nothing of a server is ever part of this repository.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import UsageError

SITES = Path(".sites")
"""Parent of slim sites, below the current directory."""

Target = Literal["cpu", "gpu312"]

_GPU_TAGS = tuple(f"manylinux{tag}_x86_64" for tag in ("_2_34", "_2_28", "_2_24", "_2_17", "2014"))


@dataclass(frozen=True)
class Site:
    """A package that can be imported."""

    folder: Path
    """The folder that holds the package folder."""
    version: str
    slim: bool
    """Made by this module: dependencies that the metadata path never calls are missing."""


@dataclass(frozen=True)
class Slim:
    """How the slim site of one package is made and found."""

    package: str
    """Its name on PyPI and of its top-level folder."""
    title: str
    """As people write it."""
    default: str
    """The release that cases name where they name none."""
    variable: str
    """Environment variable that names a slim site's folder."""
    command: str
    """What makes the default release's site."""
    version_argument: str
    """What names another release in that command."""
    gpu_wheels: tuple[str, ...]
    """Compiled packages that a GPU machine without network needs beside it."""
    kept: Callable[[str], bool]
    """Which files of the package's own wheel the metadata path may load."""
    tags: tuple[str, ...] = ()
    """Platform tag of its wheel, where it has one."""

    def locate(self, version: str | None, *, gpu: bool = False) -> Site:
        """Return what to load: installed package, then the environment variable, then `.sites/`.

        `version` None accepts whichever comes first. Raises UsageError where there is none of that version.
        """
        seen = []
        for site in self._candidates(version or self.default, gpu):
            if version in (None, site.version):
                return site
            seen.append(f"{site.version} in {site.folder}")
        wanted = version or self.default
        command = (
            self.command if wanted == self.default else f"{self.command} {self.version_argument}={wanted}"
        )
        found = f" (found {', '.join(seen)})" if seen else ""
        named = f" {version}" if version else ""
        raise UsageError(f"no {self.title}{named} to verify{found}: run `{command}`")

    def _candidates(self, version: str, gpu: bool) -> Iterator[Site]:
        spec = importlib.util.find_spec(self.package)
        if spec is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations))).parent
            if (folder / "site.json").is_file():
                yield self._slim_site(folder, "slim site on the import path")
            else:
                yield Site(folder, importlib.metadata.version(self.package), slim=False)
        if named := os.environ.get(self.variable):
            yield self._slim_site(Path(named), f"environment variable {self.variable}")
        names = (f"{self.package}-{version}-gpu312", f"{self.package}-{version}")
        for name in names if gpu else reversed(names):
            if (SITES / name).is_dir():
                yield self._slim_site(SITES / name, "slim site")

    def _slim_site(self, folder: Path, what: str) -> Site:
        try:
            manifest = json.loads((folder / "site.json").read_text())
            return Site(folder.resolve(), manifest["version"], slim=True)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{what}: {folder} is no slim site ({error}): run `{self.command}`") from error

    def build(self, version: str = "", target: Target = "cpu", out: Path | None = None) -> Path:
        """Make a slim site and return its folder; an earlier one at the same place is replaced at the end.

        version: a release on PyPI, the default one if empty. target: `cpu` for this interpreter, whose other
        packages come from pip; `gpu312` for a GPU machine without network (CPython 3.12, x86-64 Linux),
        compiled packages included. Raises UsageError.
        """
        version = version or self.default
        name = f"{self.package}-{version}"
        folder = out or SITES / (name if target == "cpu" else f"{name}-{target}")
        if folder.exists() and not (folder / "site.json").is_file():
            raise UsageError(f"{folder} exists and is no slim site: name another folder with --out")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.package}-site-", dir=folder.parent) as scratch:
            wheels = self._download(version, target, Path(scratch) / "wheels")
            fresh = Path(scratch) / "site"
            for wheel in wheels:
                self._unpack(wheel, fresh)
            manifest = {
                "version": version,
                "target": target,
                "wheels": {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels},
            }
            (fresh / "site.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
            (fresh / ".gitignore").write_text("*\n")
            if folder.exists():
                os.replace(folder, Path(scratch) / "old")
            os.replace(fresh, folder)
        return folder

    def _download(self, version: str, target: Target, folder: Path) -> list[Path]:
        own = ["-d", str(folder), f"{self.package}=={version}"]
        own += [part for tag in self.tags for part in ("--platform", tag)]
        downloads = [own]
        if target == "gpu312":
            platform = ["--python-version", "312", "--implementation", "cp"]
            platform += [part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi)]
            platform += [part for tag in _GPU_TAGS for part in ("--platform", tag)]
            if self.tags:  # its own wheel has a tag of its own
                downloads.append(["-d", str(folder), *self.gpu_wheels, *platform])
            else:
                downloads = [[*own, *self.gpu_wheels, *platform]]
        for arguments in downloads:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            command += ["--no-deps", "--only-binary=:all:", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                reason = (lines or done.stderr.splitlines() or ["pip failed"])[-1].removeprefix("ERROR: ")
                raise UsageError(f"cannot download {self.title} {version}: {reason}")
        return sorted(folder.glob("*.whl"))

    def _unpack(self, wheel: Path, folder: Path) -> None:
        prune = wheel.name.startswith(f"{self.package}-")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not prune or self.kept(name)]
            archive.extractall(folder, names)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Build a site from the command line; return the exit status."""
        program = f"python -m harness.sut.{self.package}.site"
        parser = argparse.ArgumentParser(prog=program, description=self.build.__doc__)
        parser.add_argument("--version", default=self.default, help="release on PyPI (default %(default)s)")
        parser.add_argument("--target", default="cpu", choices=("cpu", "gpu312"), help="default %(default)s")
        parser.add_argument("--out", type=Path, help=f"folder (default .sites/{self.package}-<version>)")
        options = parser.parse_args(arguments)
        try:
            folder = self.build(options.version, options.target, options.out)
        except (UsageError, OSError, zipfile.BadZipFile) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files) / 1e6
        made = f"{self.title} {options.version} ({options.target})"
        print(f"{made}: {len(files)} files, {size:.0f} MB in {folder}")
        return 0
