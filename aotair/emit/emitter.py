"""From a planned bucket to plain data: tensors and instructions, with what buckets have in common stored once."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from torch._ops import OpOverload
from torch.fx.node import Node

from aotair_runtime.format.debug_data import DebugData, Made
from aotair_runtime.format.mesh import group_argument
from aotair_runtime.format.schema import (
    Arg,
    Bucket,
    DeviceArg,
    DTypeArg,
    Form,
    Fresh,
    GroupArg,
    HostArg,
    Instruction,
    Layout,
    LayoutArg,
    MemoryFormatArg,
    Op,
    Placement,
    Space,
    TensorArg,
    WorkspaceArg,
)
from aotair_runtime.format.torch_names import dtype

from ..errors import InternalError, UnsupportedError
from ..graph.operand import op_of, results_of
from ..graph.origin import line_of, module_of, passes_of
from ..graph.streams import RECORD, stream_of
from ..graph.user_line import source
from ..lower import slices
from ..lower.lowerings import COPIES, FILLS
from ..lower.select import Kernel, Way
from ..ops.host import SUFFIX
from ..plan.lifetimes import Home, Lifetimes
from ..plan.search.arena import Plan

Args = tuple[Arg, ...]
Kwargs = Mapping[str, Arg]


_Value = TypeVar("_Value")


class Table(Generic[_Value]):
    """Values by number, each stored once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._values: list[_Value] = []

    def number(self, value: _Value) -> int:
        # By text: 1, 1.0 and True are equal in Python and different arguments of an op.
        number = self._numbers.setdefault(repr(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def values(self) -> list[_Value]:
        return self._values


@dataclass(frozen=True)
class Tables:
    """What all buckets and entry points of a program share. `constants` and `states` hold the model's names."""

    ops: Table[Op] = field(default_factory=Table)
    layouts: Table[Layout] = field(default_factory=Table)
    instructions: Table[Instruction] = field(default_factory=Table)
    constants: Table[str] = field(default_factory=Table)
    states: Table[str] = field(default_factory=Table)
    made: dict[int, Made] = field(default_factory=dict)  # where each instruction comes from
    axes: tuple[str, ...] = ()  # of the mesh, by name

    def debug_data(self) -> DebugData:
        """Where the instructions come from, in their order."""
        return DebugData(tuple(self.made[number] for number in range(len(self.instructions.values()))))


def emit(
    graph: torch.fx.Graph,
    lives: Lifetimes,
    plan: Plan,
    tables: Tables,
    names: Mapping[str, str],
    inputs: Sequence[str],
    sizes: tuple[int, ...],
    kernels: Mapping[Node, Kernel],
    hosts: Sequence[str] = (),
) -> Bucket:
    """The program of one bucket.

    `names` gives the constant's or state's name in `tables` for each placeholder that is one; `inputs` are the
    placeholders of the call's inputs, in order, `hosts` those of host inputs; `kernels` those of the nodes that run.
    """
    return _Emitter(graph, lives, plan, tables, names, inputs, kernels, hosts).bucket(sizes)


class _Emitter:
    def __init__(
        self,
        graph: torch.fx.Graph,
        lives: Lifetimes,
        plan: Plan,
        tables: Tables,
        names: Mapping[str, str],
        inputs: Sequence[str],
        kernels: Mapping[Node, Kernel],
        hosts: Sequence[str],
    ):
        self._kernels, self._hosts, self._updated = kernels, hosts, 0
        self._graph, self._lives, self._plan, self._tables = graph, lives, plan, tables
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._names, self._inputs = names, list(inputs)
        self._tensors: Table[Placement] = Table()
        self._fresh: dict[tuple[int, int], tuple[int, int]] = {}  # by op and stream: bytes and calls

    def bucket(self, sizes: tuple[int, ...]) -> Bucket:
        by_name = {node.name: node for node in self._placeholders}
        inputs = tuple(self._tensor(by_name[name]) for name in self._inputs)
        code: list[int] = []
        events = 0
        for node in self._lives.launches:
            code += self._numbers(node)
            events = max(events, node.meta.get("event", -1) + 1)
        streams = self._graph.output_node().meta.get("streams", 1)
        priorities = self._graph.output_node().meta.get("priorities", ())
        outputs = tuple(self._tensor(node) for node in results_of(self._graph))
        fresh = sorted(self._fresh.items())
        return Bucket(
            sizes=sizes,
            tensors=tuple(self._tensors.values()),
            inputs=inputs,
            outputs=outputs,
            code=tuple(code),
            height=self._plan.height,
            lower_bound=self._plan.lower_bound,
            proof=None,
            input_offsets=tuple(self._copy_offset(by_name[name]) for name in self._inputs),
            streams=streams,
            events=events,
            priorities=priorities if any(priorities) else (),
            fresh=tuple(Fresh(op, stream, nbytes, calls) for (op, stream), (nbytes, calls) in fresh),
            updated=self._updated,
        )

    def _numbers(self, node: Node) -> list[int]:
        """The numbers of a node's instructions, with where they come from remembered: for one that several buckets
        share, where the first of them has it from."""
        numbers = [self._tables.instructions.number(instruction) for instruction in self._instructions(node)]
        for number in numbers:
            if number not in self._tables.made:
                self._tables.made[number] = Made(line_of(node), module_of(node), passes_of(node))
        return numbers

    def _copy_offset(self, placeholder: Node) -> int:
        interval = self._lives.copies.get(self._placeholders.index(placeholder))
        return -1 if interval is None else self._plan.offsets[interval]

    def _instructions(self, node: Node) -> Iterator[Instruction]:
        kernel = self._kernels[node]
        if kernel.way is Way.EVENT:
            form = Form.RECORD if kernel.op is RECORD else Form.WAIT
            yield Instruction(-1, int(form), (node.meta["event"],), (), (), node.name, stream_of(node))
        elif kernel.way in (Way.COPY, Way.FILL):
            place = TensorArg(self._tensor(node))
            value = self._arg(node.args[COPIES[op_of(node)]]) if kernel.way is Way.COPY else _fill_value(node)
            yield self._make(kernel.op, Form.EFFECT, (place, value), {}, (), node)
        elif kernel.way is Way.LISTS:
            yield self._with_host_arguments(node, kernel)
        elif kernel.way is not Way.NOTHING:
            yield from self._calls(node, kernel)

    def _calls(self, node: Node, kernel: Kernel) -> Iterator[Instruction]:
        """The call of an op with the node's own arguments, or some calls on slices of them."""
        args = tuple(self._packed(arg) if n in kernel.packed else self._arg(arg) for n, arg in enumerate(node.args))
        kwargs = {name: self._arg(value) for name, value in node.kwargs.items()}
        if kernel.way is Way.EFFECT:
            yield self._make(kernel.op, Form.EFFECT, args, kwargs, (), node)
        elif kernel.way is Way.EFFECT_AND_COPY:
            fresh = [result.alias_info is None for result in kernel.op._schema.returns]
            outs = tuple(n if wanted else -1 for n, wanted in zip(self._results(node), fresh))
            yield self._copied(kernel.op, args, kwargs, outs, node, _nbytes(node, fresh))
        elif kernel.way is Way.OUT:
            takes = {argument.name for argument in kernel.op._schema.arguments}
            kept = {name: value for name, value in kwargs.items() if name in takes}
            made = self._make(kernel.op, Form.OUT, args, kept, self._results(node), node)
            if kernel.is_made_afresh:
                self._allocates(made, _nbytes(node))
            yield made
        elif kernel.way is Way.SLICES:
            yield from self._sliced(node, slices.sliced_arguments(node), args, kwargs)
        else:
            yield self._copied(kernel.op, args, kwargs, self._results(node), node, _nbytes(node))

    def _packed(self, weight: object) -> Arg:
        """A constant, or a list of it, as the node packs it; a state, which calls write, as it is."""
        if isinstance(weight, (tuple, list)):
            return tuple(map(self._packed, weight))
        assert isinstance(weight, Node)
        plain = self._tensors.values()[number := self._tensor(weight)]
        if plain.space != Space.CONSTANT:
            return TensorArg(number)
        return TensorArg(self._tensors.number(replace(plain, space=int(Space.PACKED))))

    def _with_host_arguments(self, node: Node, kernel: Kernel) -> Instruction:
        """A call whose lengths are host arguments."""
        assert kernel.workspace is not None
        kwargs: dict[str, Arg] = {}
        for name, value in node.kwargs.items():
            if name.endswith(SUFFIX) and isinstance(value, Node):
                kwargs[name.removesuffix(SUFFIX)] = self._host_arg(node, value)
            elif not name.endswith(SUFFIX):
                kwargs[name] = self._arg(value)
        kwargs["workspace"] = WorkspaceArg(self._op(kernel.workspace))
        self._updated += 1
        return self._make(kernel.op, Form.OUT, tuple(map(self._arg, node.args)), kwargs, self._results(node), node)

    def _host_arg(self, node: Node, value: Node) -> HostArg:
        if value.op != "placeholder" or value.name not in self._hosts:
            raise UnsupportedError(
                f"lengths of {node.target} are no host input{source(node)}",
                got=str(value),
                expected="an input with host: true, as it came: what the graph computes, a replay cannot replace",
            )
        return HostArg(self._inputs.index(value.name))

    def _copied(
        self, op: OpOverload, args: Args, kwargs: Kwargs, outs: tuple[int, ...], node: Node, nbytes: int
    ) -> Instruction:
        """A call whose fresh results, of `nbytes` in all, are copied to their places."""
        made = self._make(op, Form.COPY, args, kwargs, outs, node)
        self._allocates(made, nbytes)
        return made

    def _allocates(self, item: Instruction, nbytes: int) -> None:
        """A call takes so many bytes beside the arena."""
        most, calls = self._fresh.get((item.op, item.stream), (0, 0))
        self._fresh[item.op, item.stream] = (max(most, nbytes), calls + 1)

    def _sliced(self, node: Node, sliced: Sequence[str], args: Args, kwargs: Kwargs) -> Iterator[Instruction]:
        op = op_of(node)
        names = [argument.name for argument in op._schema.arguments]
        for start, stop in slices.slice_bounds(node):
            cut = functools.partial(self._cut, sliced, start, stop)
            outs = tuple(self._rows(number, start, stop).index for number in self._results(node))
            cut_args, cut_kwargs = tuple(map(cut, names, args)), {name: cut(name, arg) for name, arg in kwargs.items()}
            nbytes = _nbytes(node) // node.meta["val"].shape[0] * (stop - start)
            yield self._copied(op, cut_args, cut_kwargs, outs, node, nbytes)

    def _cut(self, sliced: Sequence[str], start: int, stop: int, name: str, arg: Arg) -> Arg:
        """An argument's rows, where it is one of those to slice."""
        return self._rows(arg.index, start, stop) if name in sliced and isinstance(arg, TensorArg) else arg

    def _rows(self, number: int, start: int, stop: int) -> TensorArg:
        """A tensor's rows from `start` to `stop`, as a tensor of its own in the same memory."""
        whole = self._tensors.values()[number]
        layout = self._tables.layouts.values()[whole.layout]
        offset = whole.offset + start * layout.strides[0] * dtype(layout.dtype).itemsize
        rows = Layout(layout.dtype, (stop - start, *layout.shape[1:]), layout.strides)
        number = self._tables.layouts.number(rows)
        return TensorArg(self._tensors.number(Placement(whole.space, whole.index, offset, number)))

    def _results(self, node: Node) -> tuple[int, ...]:
        value = node.meta["val"]
        count = len(value) if isinstance(value, (tuple, list)) else 1
        return tuple(self._result(node, position) for position in range(count))

    def _make(
        self, op: OpOverload, form: Form, args: Args, kwargs: Kwargs, outs: tuple[int, ...], node: Node
    ) -> Instruction:
        if (group := group_argument(op.name())) is not None:
            args = self._with_group(op, group, args)
        return Instruction(self._op(op), int(form), args, tuple(kwargs.items()), outs, node.name, stream_of(node))

    def _with_group(self, op: OpOverload, group: str, args: Args) -> Args:
        """The arguments of a collective, with the ranks along an axis of the mesh where the graph names it, as its
        argument `group`."""
        place = [argument.name for argument in op._schema.arguments].index(group)
        axis = args[place] if place < len(args) else None
        if not isinstance(axis, str) or axis not in self._tables.axes:
            raise UnsupportedError(
                f"{op} has no axis of the mesh for its group",
                expected=", ".join(self._tables.axes) or "a mesh in the recipe",
                got=repr(axis),
            )
        return (*args[:place], GroupArg(self._tables.axes.index(axis)), *args[place + 1 :])

    def _op(self, op: OpOverload) -> int:
        return self._tables.ops.number(Op(op.name(), str(op._schema)))

    def _arg(self, arg: object) -> Arg:
        if isinstance(arg, Node):
            return TensorArg(self._tensor(arg))
        if isinstance(arg, (tuple, list)):
            return tuple(self._arg(item) for item in arg)
        if isinstance(arg, torch.dtype):
            return DTypeArg(str(arg).removeprefix("torch."))
        if isinstance(arg, torch.memory_format):
            return MemoryFormatArg(str(arg).removeprefix("torch."))
        if isinstance(arg, torch.layout):
            return LayoutArg(str(arg).removeprefix("torch."))
        if isinstance(arg, torch.device):
            return DeviceArg()
        if arg is None or isinstance(arg, (bool, int, float, str)):
            return arg
        raise UnsupportedError(f"an argument of the type {type(arg).__name__} cannot be stored")

    def _result(self, node: Node, position: int) -> int:
        home = self._lives.homes.get((node, position))
        if home is None:
            return -1
        value = node.meta["val"]
        return self._number(home, value[position] if isinstance(value, (tuple, list)) else value)

    def _tensor(self, node: Node) -> int:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(f"{node.name} is used as a tensor but is a {type(value).__name__}{source(node)}")
        home = self._lives.home(node)
        if home is None:
            raise InternalError(f"{node.name} is read, and has no memory{source(node)}")
        return self._number(home, value)

    def _number(self, home: Home, value: torch.Tensor) -> int:
        layout = Layout(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))
        index, offset = self._address(home)
        number = self._tables.layouts.number(layout)
        return self._tensors.number(Placement(int(home.root.space), index, offset, number))

    def _address(self, home: Home) -> tuple[int, int]:
        space, index = home.root.space, home.root.index
        if space == Space.ARENA:
            return 0, self._plan.offsets[index] + home.offset
        name = self._placeholders[index].name
        if space in (Space.CALLER, Space.INPUT):
            return self._inputs.index(name), home.offset
        table = self._tables.constants if space == Space.CONSTANT else self._tables.states
        return table.number(self._names[name]), home.offset


def _nbytes(node: Node, fresh: Sequence[bool] | None = None) -> int:
    """The bytes of a call's results, or of those that are `fresh`."""
    value = node.meta["val"]
    values = value if isinstance(value, (tuple, list)) else (value,)
    kept = values if fresh is None else [item for item, new in zip(values, fresh) if new]
    return sum(item.numel() * item.element_size() for item in kept if isinstance(item, torch.Tensor))


def _fill_value(node: Node) -> Arg:
    op = op_of(node)
    value = FILLS[op]
    if not isinstance(value, str):
        return value
    position = [argument.name for argument in op._schema.arguments].index(value)
    given = node.args[position] if position < len(node.args) else node.kwargs[value]
    if not isinstance(given, (bool, int, float)):
        raise UnsupportedError(f"{op} fills with a {type(given).__name__}, which cannot be stored{source(node)}")
    return given
