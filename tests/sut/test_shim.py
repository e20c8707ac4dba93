import importlib
import sys
from pathlib import Path

import pytest

from harness.sut.sglang.names import NAMES
from harness.sut.shim import PlaceholderModule, Shim, placeholder


def test_a_placeholder_can_be_called_subclassed_asked_and_used_as_decorator() -> None:
    stub = placeholder("Stub")

    class Child(stub):  # type: ignore[misc,valid-type]
        pass

    assert Child() is not None
    assert stub.anything.deeper is not None

    def decorated() -> int:
        return 7

    assert stub("argument")(decorated) is decorated
    with pytest.raises(AttributeError):
        _ = stub.__missing__


def test_placeholders_are_seen_only_while_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "zmq"]:
        monkeypatch.delitem(sys.modules, name)
    stand_in = PlaceholderModule("deep_gemm")
    shim = Shim(NAMES, tmp_path, {"deep_gemm": stand_in})
    finders = list(sys.meta_path)
    with shim.active():
        assert importlib.import_module("deep_gemm") is stand_in
        first = importlib.import_module("zmq.utils.strtypes")
        assert isinstance(first, PlaceholderModule)
    assert sys.meta_path == finders
    assert "zmq" not in sys.modules
    assert "deep_gemm" not in sys.modules
    with shim.active():
        assert importlib.import_module("zmq.utils.strtypes") is first
    assert {"deep_gemm", "zmq"} <= set(shim.names())


def test_an_unknown_package_is_still_missing(tmp_path: Path) -> None:
    with Shim(NAMES, tmp_path, {}).active(), pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_at_all")


def test_what_stood_under_the_name_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PlaceholderModule("deep_gemm")
    monkeypatch.setitem(sys.modules, "deep_gemm", real)
    with Shim(NAMES, tmp_path, {"deep_gemm": PlaceholderModule("deep_gemm")}).active():
        assert sys.modules["deep_gemm"] is not real
    assert sys.modules["deep_gemm"] is real
