"""One digest for values: dtype, shape and bytes, order-sensitive."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def value_digest(value: NDArray[np.generic]) -> str:
    """Return the SHA-256 (hex) of an array's dtype, shape and C-order bytes."""
    array = np.ascontiguousarray(value)
    sha = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()
