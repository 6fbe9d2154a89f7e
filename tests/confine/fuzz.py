"""Hostile calls, checked as a load checks them and made between forbidden pages, in a process of their own."""

import ctypes
import math
import random

import torch

from aotair.fusion.alike import AlikeRanks
from aotair_runtime.confine.arguments import check_arguments
from aotair_runtime.confine.check import check_calls
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.devices import groups
from aotair_runtime.errors import AotairError
from aotair_runtime.format import schema
from aotair_runtime.format.schema import Form, Space
from aotair_runtime.steps import library, table

from .calls import argument, hostile, plain
from .guarded import Guarded
from .seeds import Call, Spec
from .supervised import Fault

MOST = 1 << 16  # bytes of a tensor
LARGE = 1e37
MESH = (schema.Axis("tp", 2),)
IN_ORDER = ("aten::gelu", "aten::_softmax")  # torch's own write another order into results that lie otherwise


class Runner:
    """Makes calls in memory that it keeps."""

    def __init__(self) -> None:
        self.guards = [Guarded(MOST) for _ in range(16)]

    def case(self, op: torch._ops.OpOverload, call: Call, rng: random.Random) -> str:
        """One hostile call; says whether it was refused, or what the op said of it. Raises Fault."""
        form = self._form(op)
        tensors: list[Spec] = []
        given = hostile(call, rng)
        args = tuple(argument(value, tensors) for value in given.args)
        kwargs = tuple((name, argument(value, tensors)) for name, value in given.kwargs)
        try:
            check_arguments(schema.Instruction(0, int(form), args, kwargs, (), "node"), op, "hostile")
        except AotairError:
            return "refused"
        outs = self._outs(op, form, args, kwargs, tensors, rng)
        if len(tensors) > len(self.guards) or any(_extent(item) > MOST for item in tensors):
            return "too large"
        instruction = schema.Instruction(0, int(form), args, kwargs, outs, "node")
        try:
            check_calls(_program(op, instruction, tensors), (op,), Allowed(), "hostile")
        except AotairError:
            return "refused"
        return self._run(op, instruction, tensors, rng)

    def _form(self, op: torch._ops.OpOverload) -> Form:
        if any(a.is_out for a in op._schema.arguments):
            return Form.OUT
        return Form.EFFECT if op._schema.is_mutable else Form.COPY

    def _outs(self, op, form, args, kwargs, tensors, rng) -> tuple[int, ...]:
        """Places for the results: as large as they come, or of another shape."""
        count = len(op._schema.returns)
        if form != Form.OUT:
            return (-1,) * count if form == Form.COPY else ()
        metas = [torch.empty_strided(t.shape, t.strides, dtype=getattr(torch, t.dtype), device="meta") for t in tensors]
        made = _returned(op, [_value(v, metas) for v in args], {n: _value(v, metas) for n, v in kwargs})
        start = len(tensors)
        for out in made[:count]:
            item = Spec(str(out.dtype).removeprefix("torch."), tuple(out.shape), tuple(out.stride()))
            if rng.random() < 0.1:
                item = Spec(item.dtype, tuple(rng.sample((*item.shape, 3, 5), len(item.shape))), item.strides)
                item = Spec(item.dtype, item.shape, plain(list(item.shape)))
            elif rng.random() < 0.15 and len(item.shape) > 1:
                item = Spec(item.dtype, item.shape, tuple(reversed(plain(list(reversed(item.shape))))))
            elif rng.random() < 0.05:
                item = Spec(rng.choice(("int64", "float32", "uint8", "bool", "float64")), item.shape, item.strides)
            tensors.append(item)
        return tuple(range(start, len(tensors)))

    def _run(self, op, instruction, tensors: list[Spec], rng) -> str:
        placed, before = [], []
        for guard, item in zip(self.guards, tensors):
            value = _numbers(item, rng)
            placed.append(guard.place(value, item.shape, item.strides))
            before.append(guard.bytes())
        args = [_value(arg, placed) for arg in instruction.args]
        kwargs = {name: _value(arg, placed) for name, arg in instruction.kwargs}
        names = [a.name for a in op._schema.arguments if a.is_out]
        kwargs |= {name: placed[n] for name, n in zip(names, instruction.outs)}
        written = set(instruction.outs) | _written(op, instruction)
        small = self._joined(op, args, kwargs, placed, before, written)
        state = torch.random.get_rng_state()
        try:
            with groups.named({axis.name: AlikeRanks(axis.size) for axis in MESH}):
                op(*args, **kwargs)
            end = "ran"
        except MemoryError as error:
            raise Fault(f"memory: {error}") from error
        except Exception as error:  # as an op may
            if "allocate" in str(error):
                raise Fault(f"memory: {str(error)[:100]}") from error
            end = "failed"
        for number, (guard, tensor, item) in enumerate(zip(self.guards, placed, tensors)):
            if not guard.is_clean():
                raise Fault(f"wrote before tensor {number}")
            if tuple(tensor.shape) != tuple(item.shape):
                raise Fault(f"resized tensor {number} from {item.shape} to {tuple(tensor.shape)}")
            if number not in written and not torch.equal(guard.bytes(), before[number]):
                raise Fault(f"wrote to tensor {number}, which it only reads")
        if small is not None and (op._schema.name not in IN_ORDER or all(one.is_contiguous() for one in placed)):
            _compare(end, small, {number: placed[number] for number in written if number >= 0})
        if not torch.equal(torch.random.get_rng_state(), state):
            raise Fault("moved the generator")
        return end

    def _joined(self, op, args, kwargs, placed, before, written) -> "dict[int, torch.Tensor] | None":
        """The same call as the steps of a library of small ops, where it is one: what it writes, or nothing where it
        was not made. All memory is as before at the end."""
        made = table.steps(op, args, kwargs)
        kernel = library.run()
        if made is None or kernel is None:
            return None
        data = ctypes.create_string_buffer(made.data, len(made.data))
        done = kernel(ctypes.addressof(data), made.count, 2)
        for number, (guard, was) in enumerate(zip(self.guards, before)):
            if not guard.is_clean():
                raise Fault(f"a step wrote before tensor {number}")
            if (number not in written or done < made.count) and not torch.equal(guard.bytes(), was):
                raise Fault(f"a step wrote to tensor {number}")
        found = {number: placed[number].clone() for number in written if number >= 0} if done == made.count else {}
        for guard, was in zip(self.guards, before):
            guard.restore(was)
        return found


def _compare(end: str, small: dict[int, torch.Tensor], placed: dict[int, torch.Tensor]) -> None:
    """A step is made where torch makes the call, and gives its numbers."""
    if bool(small) != (end == "ran"):
        raise Fault(f"the call {end}, and its step was {'made' if small else 'not made'}")
    for number, got in small.items():
        want = placed[number]
        if not want.is_floating_point():
            if not torch.equal(got, want):
                raise Fault(f"a step gives other numbers in tensor {number}")
            continue
        # Of infinite numbers torch's own gelu depends on where in a vector they lie, and of numbers near the greatest a
        # product on the order of its sums.
        odd = (want.isnan() & ~got.isnan()) | (got.isinf() & (want.abs() > LARGE))
        got = torch.where(odd, want, got)
        away = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(want.dtype, 1e-4)
        if not torch.allclose(got.double(), want.double(), rtol=away, atol=away, equal_nan=True):
            raise Fault(f"a step gives other numbers in tensor {number}")


def _returned(op: torch._ops.OpOverload, args, kwargs) -> list[torch.Tensor]:
    """What the overload without out arguments returns on the meta device, or empty tensors where it refuses."""
    wanted = [a.name for a in op._schema.arguments if not a.is_out]
    packet = op._overloadpacket
    for other in (getattr(packet, name) for name in packet.overloads()):
        if [a.name for a in other._schema.arguments] == wanted:
            try:
                made = other(*args, **kwargs)
            except Exception:  # as a hostile call may
                continue
            return [made] if isinstance(made, torch.Tensor) else list(made)
    return [torch.empty(0, device="meta") for _ in op._schema.returns]


def _written(op, instruction) -> set[int]:
    given = dict(zip((a.name for a in op._schema.arguments), instruction.args)) | dict(instruction.kwargs)
    names = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return {given[n].index for n in names if isinstance(given.get(n), schema.TensorArg)}


def _value(arg, tensors):
    if isinstance(arg, schema.TensorArg):
        return tensors[arg.index]
    if isinstance(arg, tuple):
        return [_value(item, tensors) for item in arg]
    if isinstance(arg, schema.DTypeArg):
        return getattr(torch, arg.name)
    if isinstance(arg, schema.MemoryFormatArg):
        return getattr(torch, arg.name)
    if isinstance(arg, schema.LayoutArg):
        return getattr(torch, arg.name)
    if isinstance(arg, schema.GroupArg):
        return MESH[arg.axis].name
    if isinstance(arg, schema.DeviceArg):
        return torch.device(tensors[0].device) if tensors else torch.device("cpu")
    return arg


def _extent(item: Spec) -> int:
    return _reach(item) * getattr(torch, item.dtype).itemsize


def _reach(item: Spec) -> int:
    return 0 if 0 in item.shape else 1 + sum((n - 1) * s for n, s in zip(item.shape, item.strides))


def _numbers(item: Spec, rng: random.Random) -> torch.Tensor:
    """What lies in a tensor's memory."""
    count, dtype = _reach(item), getattr(torch, item.dtype)
    seed = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=seed).bool()
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(count, generator=seed)
        if rng.random() < 0.2 and count:
            made[rng.randrange(count)] = rng.choice((math.nan, math.inf, -math.inf, 1e38, -1e9))
        return made.to(dtype)
    if item.high <= 0 or item.high > 1 << 30:
        info = torch.iinfo(dtype)
        made = torch.randint(0, 2, (count,), generator=seed)
        for number in range(count):
            if rng.random() < 0.5:
                made[number] = max(info.min, min(info.max, rng.choice((item.high, -1, -(1 << 62), 1 << 40, 1000))))
        return made.to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(0, min(item.high, info.max), (count,), generator=seed).to(dtype)


def _program(op: torch._ops.OpOverload, instruction: schema.Instruction, tensors: list[Spec]) -> schema.Program:
    layouts = tuple(schema.Layout(t.dtype, tuple(t.shape), tuple(t.strides)) for t in tensors)
    starts, start = [], 0
    for item in tensors:
        starts.append(start)
        start += -(-_extent(item) // 64) * 64
    places = tuple(schema.Placement(int(Space.ARENA), 0, at, n) for n, at in enumerate(starts))
    fresh = (schema.Fresh(0, 0, 1 << 24, 1),)
    bucket = schema.Bucket((), places, (), (), (0,), start, start, None, fresh=fresh)
    entry = schema.EntryPoint("forward", (), (), (), ("tuple",), (bucket,), (0,))
    return schema.Program(
        "hostile",
        schema.Requirements("2.13", "2.13", "cpu"),
        schema.Options(True, False),
        schema.Tolerance(0.0, 0.0),
        (), (), (schema.Op(op.name(), str(op._schema)),), layouts, (instruction,), (entry,), start, 64, (), mesh=MESH,
    )  # fmt: skip
