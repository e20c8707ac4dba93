"""What this machine has for tests that ask for more than a CPU: others are skipped with the reason."""

import pytest

from harness.errors import UsageError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu`, `multigpu` and `sglang` where this machine lacks what they need."""
    reasons: dict[str, str] = {}
    for item in items:
        for name, find in (("gpu", _no_gpu), ("multigpu", _no_second_gpu), ("sglang", _no_sglang)):
            if item.get_closest_marker(name) is not None:
                if name not in reasons:
                    reasons[name] = find()
                if reasons[name]:
                    item.add_marker(pytest.mark.skip(reason=reasons[name]))


def _no_gpu() -> str:
    return "" if _gpus() else "no CUDA device"


def _no_second_gpu() -> str:
    return "" if _gpus() > 1 else f"needs two CUDA devices, {_gpus()} found"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _no_sglang() -> str:
    from harness.sut.sglang import site

    try:
        site.locate(None)
    except UsageError as error:
        return str(error)
    return ""
