"""Where the SGLang under test comes from: an installed package, or a slim site made from PyPI wheels.

`python -m harness.sut.sglang.site` (what `make sglang-site` calls) downloads pinned wheels, keeps what
the DSA metadata path may load and puts it into `.sites/sglang-<version>`, a folder that git ignores.
Nothing of SGLang is ever part of this repository.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import UsageError

DEFAULT_VERSION = "0.5.23"
"""The release that cases name where they name none."""
SITES = Path(".sites")
"""Parent of slim sites, below the current directory."""
SITE_VARIABLE = "REPLAY_HARNESS_SGLANG_SITE"
"""Environment variable that names a slim site's folder."""
COMMAND = "make sglang-site"

Target = Literal["cpu", "gpu312"]

_GPU_WHEELS = ("apache-tvm-ffi==0.1.11", "msgspec", "sgl-deep-gemm==0.1.5.post1")
"""Compiled packages that a GPU machine without network needs beside SGLang. This DeepGEMM is the newest
one that loads with torch 2.11; SGLang's own pin does not."""
_GPU_TAGS = tuple(f"manylinux{tag}_x86_64" for tag in ("_2_34", "_2_28", "_2_24", "_2_17", "2014"))

_UNUSED = (
    "api", "benchmark", "cli", "lang", "multimodal_gen", "test", "kernels/jit/benchmark",
    "kernels/jit/csrc/diffusion", "kernels/jit/include/sgl_kernel/diffusion",
    *(
        f"srt/{name}"
        for name in (
            "checkpoint_engine", "connector", "constrained", "debug_utils", "entrypoints", "function_call",
            "model_loader", "models", "multimodal", "parser", "ray", "rust_extensions", "rust_server",
        )
    ),
)  # fmt: skip
"""Folders of the package that nothing on the metadata path imports."""


@dataclass(frozen=True)
class Site:
    """An SGLang that can be imported."""

    folder: Path
    """The folder that holds the package folder `sglang`."""
    version: str
    slim: bool
    """Made by this module: dependencies that the metadata path never calls are missing."""


def locate(version: str | None, *, gpu: bool = False) -> Site:
    """Return the SGLang to load: installed package, then the environment variable, then `.sites/`.

    `version` None accepts whichever comes first. Raises UsageError where there is none of that version.
    """
    seen = []
    for site in _candidates(version or DEFAULT_VERSION, gpu):
        if version in (None, site.version):
            return site
        seen.append(f"{site.version} in {site.folder}")
    wanted = version or DEFAULT_VERSION
    command = COMMAND if wanted == DEFAULT_VERSION else f"{COMMAND} SGLANG_VERSION={wanted}"
    found = f" (found {', '.join(seen)})" if seen else ""
    raise UsageError(f"no SGLang{f' {version}' if version else ''} to verify{found}: run `{command}`")


def _candidates(version: str, gpu: bool) -> Iterator[Site]:
    spec = importlib.util.find_spec("sglang")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))).parent
        if (folder / "site.json").is_file():
            yield _slim_site(folder, "slim site on the import path")
        else:
            yield Site(folder, importlib.metadata.version("sglang"), slim=False)
    if named := os.environ.get(SITE_VARIABLE):
        yield _slim_site(Path(named), f"environment variable {SITE_VARIABLE}")
    names = (f"sglang-{version}-gpu312", f"sglang-{version}")
    for name in names if gpu else reversed(names):
        if (SITES / name).is_dir():
            yield _slim_site(SITES / name, "slim site")


def _slim_site(folder: Path, what: str) -> Site:
    try:
        manifest = json.loads((folder / "site.json").read_text())
        return Site(folder.resolve(), manifest["version"], slim=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{what}: {folder} is no slim site ({error}): run `{COMMAND}`") from error


def build(version: str = DEFAULT_VERSION, target: Target = "cpu", out: Path | None = None) -> Path:
    """Make a slim site and return its folder; an earlier one at the same place is replaced at the end.

    target: `cpu` for this interpreter, whose other packages come from pip; `gpu312` for a GPU machine
    without network (CPython 3.12, x86-64 Linux), compiled packages included. Raises UsageError.
    """
    folder = out or SITES / (f"sglang-{version}" if target == "cpu" else f"sglang-{version}-{target}")
    if folder.exists() and not (folder / "site.json").is_file():
        raise UsageError(f"{folder} exists and is no slim site: name another folder with --out")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sglang-site-", dir=folder.parent) as scratch:
        wheels = _download(version, target, Path(scratch) / "wheels")
        fresh = Path(scratch) / "site"
        for wheel in wheels:
            _unpack(wheel, fresh)
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


def _download(version: str, target: Target, folder: Path) -> list[Path]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "-d", str(folder), f"sglang=={version}"]
    if target == "gpu312":
        command += [*_GPU_WHEELS, "--python-version", "312", "--implementation", "cp"]
        command += [part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi)]
        command += [part for tag in _GPU_TAGS for part in ("--platform", tag)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (lines or done.stderr.splitlines() or ["pip failed"])[-1].removeprefix("ERROR: ")
        raise UsageError(f"cannot download SGLang {version}: {reason}")
    return sorted(folder.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> None:
    prune = wheel.name.startswith("sglang-")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not prune or _kept(name)])


def _kept(name: str) -> bool:
    package, _, path = name.partition("/")
    if package != "sglang" or any(path.startswith(f"{unused}/") for unused in _UNUSED):
        return False
    return path.endswith(".py") or path.startswith(("kernels/jit/csrc/", "kernels/jit/include/"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build a site from the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.sut.sglang.site", description=build.__doc__)
    parser.add_argument("--version", default=DEFAULT_VERSION, help="release on PyPI (default %(default)s)")
    parser.add_argument("--target", default="cpu", choices=("cpu", "gpu312"), help="default %(default)s")
    parser.add_argument("--out", type=Path, help="folder (default .sites/sglang-<version>)")
    options = parser.parse_args(arguments)
    try:
        folder = build(options.version, options.target, options.out)
    except (UsageError, OSError, zipfile.BadZipFile) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"SGLang {options.version} ({options.target}): {len(files)} files, {size:.0f} MB in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
