"""One call of a loaded model, instruction by instruction with what each got and left, or as it is captured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.call.call_plan import CallPlan
from aotair_runtime.call.entry import Entry
from aotair_runtime.capture.bind import Tensors as Bound
from aotair_runtime.capture.bind import bound_call
from aotair_runtime.devices.host_call import HostCall
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.packed import tensor_numbers
from aotair_runtime.format.schema import READ_ONLY, Form, Instruction, Space
from aotair_runtime.format.structure import leaf_names
from aotair_runtime.format.written import written_arguments, written_names
from aotair_runtime.model import Model

from ..prove.runs import Run
from .trail import Seen, Trail, kept, overwrites

Lists = Sequence[list[int]]


@dataclass(frozen=True)
class Call:
    """A call of an entry point: its inputs on the host by name, and the states before it (the others are as built)."""

    inputs: Mapping[str, torch.Tensor]
    states: Mapping[str, torch.Tensor]


class StepError(Exception):
    """An instruction fails: its name in the graph, its op, and the line of the model's code."""

    def __init__(self, seen: Seen, error: Exception):
        super().__init__(f"{type(error).__name__}: {error}")
        self.node, self.op, self.line = seen.name, seen.op, seen.made.line


def captured(model: Model, name: str, call: Call, lists: Mapping[str, list[int]]) -> Run:
    """What a call leaves behind, as any caller makes it, where one with other `lists` was the last to be served by the
    same captured graph."""
    given, entry = _prepared(model, name, call), model.entry_points[name]
    entry.flat(_in_order(entry, {**given, **lists}))
    _put_states(model, call)
    with torch.inference_mode():
        for spec in entry.spec.inputs:
            if spec.kind == "mutated":
                given[spec.name].copy_(call.inputs[spec.name])  # type: ignore[union-attr]  # a tensor
    outputs = entry.flat(_in_order(entry, given))
    model.synchronize()
    return _run(model, entry, given, outputs)


def stepped(
    model: Model, name: str, call: Call, debug: DebugData, stale: tuple[str, Lists] | None = None
) -> tuple[Run, Trail]:
    """The same, instruction by instruction, and what each got and left; `stale`: the instruction of that name takes
    these lists, not the call's."""
    entry, found = model.entry_points[name], list[_Steps]()
    own = entry._replay

    def replay(plan: CallPlan, tensors: Sequence[torch.Tensor], *rest: object) -> list[torch.Tensor]:
        in_place = {position: tensors[position] for position, _ in plan.captured.key}
        found.append(_Steps(entry, plan.number, in_place, debug, stale))
        graph, plan.captured.graph = plan.captured.graph, found[-1]
        try:
            return own(plan, tensors, *rest)  # type: ignore[arg-type]  # what it was called with
        finally:
            plan.captured.graph = graph

    given = _prepared(model, name, call)
    entry.watched(entry.flat, replay)
    try:
        outputs = entry.flat(_in_order(entry, given))
    finally:
        entry.unwatched()
    model.synchronize()
    return _run(model, entry, given, outputs), found[-1].trail


def _prepared(model: Model, name: str, call: Call) -> dict[str, torch.Tensor | list[int]]:
    """The inputs as a caller has them, on the device; the states are those of the call."""
    _put_states(model, call)
    specs = model.entry_points[name].spec.inputs
    return {
        spec.name: call.inputs[spec.name].tolist() if spec.host else call.inputs[spec.name].to(model.device, copy=True)
        for spec in specs
    }


def _put_states(model: Model, call: Call) -> None:
    model.reset_state()
    own = model.state
    with torch.inference_mode():
        for state, value in call.states.items():
            own[state].copy_(value)


def _in_order(entry: Entry, given: Mapping[str, object]) -> list[torch.Tensor]:
    return [given[spec.name] for spec in entry.spec.inputs]  # type: ignore[misc]  # `flat` takes lists too


def _run(model: Model, entry: Entry, given: Mapping[str, object], outputs: Sequence[torch.Tensor]) -> Run:
    mutated = {spec.name: given[spec.name] for spec in entry.spec.inputs if spec.kind == "mutated"}
    names = [*leaf_names(entry.spec.structure), *(f"input {n}" for n in mutated), *(f"state {n}" for n in model.state)]
    tensors = [*outputs, *mutated.values(), *model.state.values()]
    return Run(names, [one for one in kept(tensors) if one is not None])  # type: ignore[arg-type]  # inputs with mutated: true are tensors


class _Steps:
    """Stands for a captured graph: makes the calls one by one."""

    def __init__(
        self,
        entry: Entry,
        number: int,
        in_place: dict[int, torch.Tensor],
        debug: DebugData,
        stale: tuple[str, Lists] | None,
    ):
        graphs = entry.graphs
        self._parts, self._bucket = graphs.parts, entry.spec.buckets[number]
        memory = graphs.memory(number, in_place)
        self._tensors, self._debug = Bound(self._parts.program, self._bucket, memory), debug
        self._stale = stale
        self._calls = [
            (n, item, bound_call(item, self._parts.ops, self._tensors, self._parts.device.torch_device, memory.lists))
            for n, item in ((n, self._parts.program.instructions[n]) for n in self._bucket.code)
            if not item.is_event
        ]
        self.trail: dict[str, Seen] = {}

    def replay(self) -> None:
        for number, item, call in self._calls:
            name = item.node if item.node not in self.trail else f"{item.node}, instruction {number}"
            op = self._parts.program.ops[item.op].name
            seen = Seen(name, op, self._debug.of(number), kept(list(self._given(item))), ())
            try:
                self._make(call)
            except Exception as error:
                raise StepError(seen, error) from error
            self.trail[name] = replace(seen, results=kept(list(self._left(item))))

    def replay_with(self, lists: Lists) -> None:
        for _, item, call in self._calls:
            if isinstance(call, HostCall):
                call.set(self._stale[1] if self._stale is not None and self._stale[0] == item.node else lists)
        self.replay()

    def reset(self) -> None:
        self._calls.clear()

    def _make(self, call: Callable[[], object]) -> None:
        with torch.inference_mode():
            call()
        self._parts.device.synchronize()

    def _given(self, item: Instruction) -> Iterator[torch.Tensor | None]:
        """The tensors among the arguments; None for a weight, which is as it was loaded."""
        args = item.args[item.form == Form.EFFECT and overwrites(self._parts.program.ops[item.op].name) :]
        for number in tensor_numbers((*args, *(value for _, value in item.kwargs))):
            space = self._tensors.space(number)
            is_weight = space in READ_ONLY and space != Space.INPUT
            yield None if is_weight else self._tensors[number]

    def _left(self, item: Instruction) -> Iterator[torch.Tensor | None]:
        """Its results, then what it wrote into."""
        schema = self._parts.ops[item.op]._schema
        yield from (None if number < 0 else self._tensors[number] for number in item.outs)
        for arg in written_arguments(item, schema, written_names(schema)):
            yield self._tensors[arg.index]
