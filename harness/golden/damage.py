"""Reading a golden's tensors, and saying in one line what is wrong with them."""

from __future__ import annotations

import pathlib

from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from harness.errors import GoldenError
from harness.golden.codec import Tensors
from harness.golden.manifest import LFS_POINTER, Manifest, tensor_row

MEND = "restore both files with git, or remove them and update with mode new"
_UNREADABLE = (SafetensorError, KeyError, TypeError, ValueError)
"""What reading a damaged file raises: a changed header may name an unknown dtype or an impossible shape."""


def checked(where: str, data: bytes, manifest: Manifest) -> Tensors:
    """Read a file whose SHA-256 fits and hold its tensors against the manifest's table; raise GoldenError."""
    try:
        tensors = load_tensors(data)
    except _UNREADABLE as error:
        raise GoldenError(f"{where}: no readable safetensors ({error}); {MEND}") from error
    found = _table_mismatch(tensors, manifest)
    if found:
        raise GoldenError(f"{where}: does not fit its manifest: {found}; {MEND}")
    return tensors


def damage(path: pathlib.Path, data: bytes, manifest: Manifest) -> str:
    """Say in one line how a tensor file differs from what its manifest says."""
    if data.startswith(LFS_POINTER):
        return f"{path}: is a Git LFS pointer, not the file; fetch it with `git lfs pull`"
    if len(data) < manifest.file.bytes:
        return f"{path}: is truncated, {len(data)} of {manifest.file.bytes} bytes; {MEND}"
    try:
        found = _table_mismatch(load_tensors(data), manifest)
    except _UNREADABLE as error:
        found = f"its header is unreadable ({error})"
    return f"{path}: is damaged or belongs to another update: {found or 'its header changed'}; {MEND}"


def _table_mismatch(tensors: Tensors, manifest: Manifest) -> str:
    """Return the first difference between tensors and the manifest's table, both ways; empty if none."""
    rows = {row.name: row for row in manifest.tensors}
    for name in sorted(rows.keys() | tensors.keys()):
        if name not in tensors:
            return f"tensor {name} is missing"
        if name not in rows:
            return f"tensor {name} is not in the manifest"
        found, row = tensor_row(name, tensors[name]), rows[name]
        if (found.dtype, found.shape) != (row.dtype, row.shape):
            wanted = f"{row.dtype}{list(row.shape)}"
            return f"tensor {name} is {found.dtype}{list(found.shape)}, the manifest says {wanted}"
        if found.sha256 != row.sha256:
            return f"the bytes of tensor {name} are not those of the manifest"
    return ""
