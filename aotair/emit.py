"""From a planned bucket to plain data: tensors and instructions, with what buckets have in common stored once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx.node import Node

from aotair_runtime.schema import (
    Arg,
    Bucket,
    DeviceArg,
    DTypeArg,
    Form,
    Instruction,
    Layout,
    LayoutArg,
    MemoryFormatArg,
    Op,
    Placement,
    Space,
    TensorArg,
)

from .errors import UnsupportedError
from .graph.verify import source
from .outs import out_variant
from .plan.arena import Plan
from .plan.lifetimes import Home, Lifetimes

_aten = torch.ops.aten
# Ops that only copy their first argument, perhaps to another dtype: written as a copy into planned memory.
_COPIES = frozenset({_aten.clone.default, _aten._to_copy.default, _aten.lift_fresh_copy.default})
# Factories of one value: written as a fill of planned memory. The value, or the name of the argument that has it.
_FILLS = {
    _aten.full.default: "fill_value",
    _aten.full_like.default: "fill_value",
    _aten.new_full.default: "fill_value",
    _aten.scalar_tensor.default: "s",
    _aten.ones.default: 1,
    _aten.ones_like.default: 1,
    _aten.new_ones.default: 1,
    _aten.zeros.default: 0,
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
}
_UNINITIALISED = frozenset(
    {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default, _aten.empty_strided.default}
)


class Table:
    """Values by number, each stored once."""

    def __init__(self):
        self._numbers: dict[str, int] = {}
        self._values: list = []

    def number(self, value: object) -> int:
        # By text: 1, 1.0 and True are equal in Python and different arguments of an op.
        number = self._numbers.setdefault(repr(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def values(self) -> tuple:
        return tuple(self._values)


@dataclass(frozen=True)
class Tables:
    """What all buckets and entry points of a program share. `constants` and `states` hold the model's names."""

    ops: Table = field(default_factory=Table)
    layouts: Table = field(default_factory=Table)
    instructions: Table = field(default_factory=Table)
    constants: Table = field(default_factory=Table)
    states: Table = field(default_factory=Table)


def emit(
    graph: torch.fx.Graph,
    lives: Lifetimes,
    plan: Plan,
    tables: Tables,
    names: Mapping[str, str],
    inputs: Sequence[str],
    sizes: tuple[int, ...],
) -> Bucket:
    """The program of one bucket.

    `names` gives the constant's or state's name in `tables` for each placeholder that is one; `inputs` are the
    placeholders of the call's inputs, in order.
    """
    return _Emitter(graph, lives, plan, tables, names, inputs).bucket(sizes)


class _Emitter:
    def __init__(self, graph, lives: Lifetimes, plan: Plan, tables: Tables, names: Mapping[str, str], inputs):
        self._graph, self._lives, self._plan, self._tables = graph, lives, plan, tables
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._names, self._inputs = names, list(inputs)
        self._tensors = Table()

    def bucket(self, sizes: tuple[int, ...]) -> Bucket:
        by_name = {node.name: node for node in self._placeholders}
        inputs = tuple(self._tensor(by_name[name]) for name in self._inputs)
        code = []
        for node in self._lives.launches:
            instruction = self._instruction(node)
            if instruction is not None:
                code.append(self._tables.instructions.number(instruction))
        outputs = tuple(self._tensor(node) for node in self._graph.output_node().args[0])
        return Bucket(
            sizes, self._tensors.values(), inputs, outputs, tuple(code), self._plan.height, self._plan.lower_bound, None
        )

    def _instruction(self, node: Node) -> Instruction | None:
        op = node.target
        if op in _UNINITIALISED:
            return None
        if op in _COPIES:
            return self._make(_aten.copy_.default, Form.EFFECT, (TensorArg(self._tensor(node)), self._arg(node.args[0])), (), (), node)
        if op in _FILLS:
            value = _fill_value(node)
            return self._make(_aten.fill_.Scalar, Form.EFFECT, (TensorArg(self._tensor(node)), value), (), (), node)
        args = tuple(self._arg(arg) for arg in node.args)
        kwargs = {name: self._arg(value) for name, value in node.kwargs.items()}
        if op._schema.is_mutable:
            return self._make(op, Form.EFFECT, args, kwargs.items(), (), node)
        out = out_variant(op)
        results = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
        outs = tuple(self._result(node, position) for position in range(len(results)))
        if out is None:
            return self._make(op, Form.COPY, args, kwargs.items(), outs, node)
        takes = {argument.name for argument in out._schema.arguments}
        kept = [(name, value) for name, value in kwargs.items() if name in takes]
        return self._make(out, Form.OUT, args, kept, outs, node)

    def _make(self, op, form: Form, args: tuple, kwargs, outs: tuple[int, ...], node: Node) -> Instruction:
        number = self._tables.ops.number(Op(op.name(), str(op._schema)))
        return Instruction(number, int(form), args, tuple(kwargs), outs, node.name)

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
        return self._number(self._lives.home(node), value)

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
        if space == Space.CALLER:
            return self._inputs.index(name), home.offset
        table = self._tables.constants if space == Space.CONSTANT else self._tables.states
        return table.number(self._names[name]), home.offset


def _fill_value(node: Node) -> Arg:
    value = _FILLS[node.target]
    if not isinstance(value, str):
        return value
    names = [argument.name for argument in node.target._schema.arguments]
    position = names.index(value)
    return node.args[position] if position < len(node.args) else node.kwargs[value]
