"""Finding a CUDA toolkit with which a server's kernels can be built."""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

from harness.errors import UsageError


def toolkit() -> str:
    """Return a CUDA root with `bin/nvcc` and `lib64/libcudart.so`; UsageError where there is none.

    Left to itself a server takes the parent of the folder where it finds nvcc. Where that is a wrapper in
    `/usr/local/bin`, every JIT link fails for want of the runtime library.
    """
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        roots.append(str(Path(nvcc).resolve().parent.parent))
    for root in (*roots, *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)):
        if root and Path(root, "bin/nvcc").exists() and Path(root, "lib64/libcudart.so").exists():
            return root
    raise UsageError("no CUDA toolkit with bin/nvcc and lib64/libcudart.so: set CUDA_HOME")
