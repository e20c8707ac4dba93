"""Recording one call as a list of nodes, and executing the list again on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from harness.engine.dispatch import OperationMode, Traits, into, tensors_in, written_tensors
from harness.engine.tape_guard import refusal, refuse_host_read
from harness.engine.tape_memory import External, Memory, unseen
from harness.errors import CaptureError, HarnessError
from harness.probe.launches import Launch, Written

_NODE_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError, AssertionError)


class Node(NamedTuple):
    """One operation, bound to memory."""

    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    land: Callable[[Any], Any] | None
    """Puts functional results into the memory born at capture."""
    operation: str


class TapeGraph:
    """A recorded call. Holds the memory born in it; memory of others it only names."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        externals: tuple[External, ...],
        pool: tuple[torch.UntypedStorage, ...],
    ) -> None:
        """Made by `Recorder.graph`."""
        self._nodes = nodes
        self._externals = externals
        self._pool = pool

    def nodes(self) -> int:
        """Return how many operations a replay executes."""
        return len(self._nodes)

    def uses(self) -> tuple[int, ...]:
        """Return the identities of the storages of others that a replay reads or writes."""
        return tuple(external.weak.cdata for external in self._externals)

    def replay(self, name_of: Callable[[int], str]) -> None:
        """Execute all nodes in order.

        name_of: a storage's name by identity, for messages. Raises FreedStorageError, before any
        node runs, if a storage that a node uses no longer lives; HarnessError if a node fails.
        """
        nodes = self._nodes
        index = -1
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.inference_mode():
            try:
                for external in self._externals:
                    external.attach(name_of, len(nodes))
                for index, (run, args, kwargs, land, _) in enumerate(nodes):  # noqa: B007 (the handler reads it)
                    result = run(*args, **kwargs)
                    if land is not None:
                        land(result)
            except _NODE_ERRORS as error:
                first = (str(error).strip().splitlines() or [""])[0]
                raise HarnessError(
                    f"replay: node {index + 1} of {len(nodes)}, {nodes[index].operation}, failed: "
                    f"{type(error).__name__}: {first}"
                ) from error
            finally:
                for external in self._externals:
                    external.detach()


class Recorder(OperationMode):  # type: ignore[no-untyped-call]
    """The dispatch mode that records one call.

    Other dispatch modes may lie above or below it: every operation is passed on through the stack.
    """

    def __init__(self) -> None:
        """Start with an empty tape."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = Memory()
        self._nodes: list[Node] = []
        self.refused: CaptureError | None = None
        """The first operation that a graph cannot hold, kept because callers may swallow the exception."""

    def graph(self) -> TapeGraph:
        """Return what was recorded."""
        return TapeGraph(tuple(self._nodes), self._memory.externals(), self._memory.owned())

    def restore(self) -> None:
        """Undo what the recorded call did to memory, as a capture executes nothing."""
        with _disable_current_modes():
            self._memory.restore()

    def refuse_host_read(self, name: str) -> None:
        """Raise for a host read, except in an opaque launch, which runs with all modes off."""
        if any(mode is self for mode in _get_current_dispatch_mode_stack()):
            raise self._refuse(refuse_host_read(name))

    def operation(
        self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record one operation and execute it."""
        memory = self._memory
        error = refusal(func, traits, args, kwargs, memory.constant)
        if error is not None:
            raise self._refuse(error)
        with unseen():
            self._see_arguments(traits, args, kwargs)
        result = func._op(*args, **kwargs)
        with unseen():
            outputs = tensors_in(result)
            fresh = memory.adopt_all(outputs)
            if traits.allocates:
                memory.uninitialise(outputs[0])
            elif traits.written or any(fresh) or not func._schema.returns:
                self._add(func, traits, args, kwargs, outputs, fresh)
        return result

    def before_launch(self, launch: Launch) -> None:
        """Keep what the launch may overwrite."""
        for tensor in launch.tensors:
            self._memory.see(tensor)
            self._memory.save(tensor)

    def observe_launch(self, launch: Launch, written: tuple[Written, ...]) -> None:
        """Record a launch as one opaque node.

        The launch's closure holds its tensors, so their storages cannot be freed while the graph
        lives and a free cannot be seen; they are recorded as used all the same, which sees a
        storage whose memory was moved.
        """
        for tensor in launch.tensors:
            self._memory.see(tensor)
            self._memory.bind(tensor, len(self._nodes), launch.kernel)
        self._nodes.append(Node(launch.run, (), {}, None, launch.kernel))

    def _refuse(self, error: CaptureError) -> CaptureError:
        self.refused = self.refused or error
        return error

    def _see_arguments(self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        memory = self._memory
        lifted = traits.name == "aten.lift_fresh"
        for tensor in (*tensors_in(args), *tensors_in(kwargs)):
            if lifted and not memory.knows(tensor):
                memory.adopt(tensor, constant=True)
            else:
                memory.see(tensor)
        for tensor in written_tensors(traits, args, kwargs):
            memory.save(tensor)

    def _add(
        self,
        func: OpOverload,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: list[torch.Tensor],
        fresh: list[bool],
    ) -> None:
        # Arguments are bound after execution: an out= tensor may have taken its size only now.
        index, name = len(self._nodes), traits.name
        landing = [
            self._memory.bind(output, index, name) if born else None
            for output, born in zip(outputs, fresh, strict=True)
        ]
        bound_args = tuple(self._bound(value, index, name) for value in args)
        bound = {key: self._bound(value, index, name) for key, value in kwargs.items()} if kwargs else kwargs
        direct = into(func) if len(landing) == 1 and landing[0] is not None else None
        if direct is not None:
            node = Node(direct._op, bound_args, {**bound, "out": landing[0]}, None, name)
        else:
            node = Node(func._op, bound_args, bound, _land(landing), name)
        self._nodes.append(node)

    def _bound(self, value: Any, node: int, operation: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._memory.bind(value, node, operation)
        if isinstance(value, list | tuple):
            return type(value)(self._bound(item, node, operation) for item in value)
        return value


def _land(landing: list[torch.Tensor | None]) -> Callable[[Any], Any] | None:
    """Return what puts a node's results into their memory; None if they are there already."""
    if all(target is None for target in landing):
        return None
    if len(landing) == 1 and landing[0] is not None:
        return landing[0].copy_

    def land(result: Any) -> None:
        for target, value in zip(landing, tensors_in(result), strict=True):
            if target is not None:
                target.copy_(value)

    return land
