"""Calls of the npu ops that differ from a sample in one argument: a kernel that does not read it gets them wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from npu_samples import op, samples, tensor

DTYPES = (0, 1, 3, 5, 6, 12, 15, 16, 23, 24, 285, 290)  # torch's numbers of scalar types, and torch_npu's own
# Where the schema says ScalarType: a kernel that is called by itself would take a number for a device.
SCALAR_TYPES = (
    *(torch.uint8, torch.int8, torch.int32, torch.float16, torch.float32, torch.bfloat16),
    *(torch.float8_e5m2, torch.float8_e4m3fn),
)
_STRINGS = (
    *("BSH", "BNSD", "TND", "half", "interleave", "quarter", "pertoken", "perchannel", "pertensor"),
    *("Norm", "PA", "PA_NZ", "PA_BSND", "BSND"),
)
_SAMPLES_OF_EACH = 6  # spread over all samples of an op: dtypes, shapes and modes


@dataclass(frozen=True)
class Variation:
    """A call of `name` that differs in `argument`, and the sample's own."""

    name: str
    argument: str
    value: object
    before: dict[str, object]

    def after(self) -> dict[str, object]:
        return self.before | {self.argument: self.value}

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, torch.Tensor):
            value = f"{value.dtype} {tuple(value.shape)}"
        return f"{self.name}({self.argument}={value})"


def variations() -> Iterator[Variation]:
    """Every argument of every op, changed alone, from a few samples of each."""
    torch.manual_seed(0)
    calls: dict[str, list[dict]] = {}
    for name, args, kwargs in samples():
        names = [argument.name for argument in op(name)._schema.arguments]
        calls.setdefault(name, []).append(dict(zip(names, args)) | kwargs)
    more: dict[str, list[dict]] = {}
    for name, call in _more():
        more.setdefault(name, []).append(call)
    for name, found in calls.items():
        step = max(1, len(found) // _SAMPLES_OF_EACH)
        for before in (*found[::step], *more.get(name, ())):
            for argument in op(name)._schema.arguments:
                if argument.name in ("out", "workspace", "hcom"):
                    continue  # what results are written into, and with (`test_npu_attention` has them); who is met
                now = before.get(argument.name, argument.default_value)
                for value in _others(argument, now, before):
                    yield Variation(name, argument.name, value, before)


def _more() -> Iterator[tuple[str, dict]]:
    """Calls in which arguments count that do not in the samples."""
    square, half = tensor((8, 8), torch.float16), torch.float16
    scales, groups = torch.rand(8) + 0.5, torch.tensor([2, 8], dtype=torch.int32)
    yield "npu_quantize", {"input": square, "scales": scales, "zero_points": None, "dtype": 1, "axis": 0}
    yield "npu_dynamic_quant", {"input": square, "smooth_scales": tensor((2, 8), half), "group_index": groups}
    x = tensor((2, 3, 4, 8), half)
    rotated = {"input": x, "r1": x[:1, :, :1], "r2": x[1:, :, :1]}
    ends = {"group_list": torch.tensor([1, 2, 3]), "group_type": 0, "split_item": 3}  # sizes as well as ends
    yield "npu_grouped_matmul", {"x": [tensor((7, 8), half)], "weight": [tensor((3, 8, 5), half)]} | ends
    yield "npu_rotary_mul", rotated | {"rotate": tensor((8, 8), half)}


def _others(argument: torch.Argument, now: object, call: dict) -> Iterator[object]:
    kind = str(argument.type)
    if argument.name == "epsilon" or "epsilon" in argument.name:
        yield 0.5
    elif kind in ("Tensor", "Optional[Tensor]"):
        yield from _tensors(now, call)
    elif "List[Tensor]" in kind:
        given = [value for value in call.values() if isinstance(value, list) and isinstance(value[0], torch.Tensor)]
        yield [_changed(value) for value in now] if now else [torch.ones_like(value) * 2 for value in given[-1]]
    elif "List[int]" in kind or "List[SymInt]" in kind:
        yield from ([list(reversed(now))] if now and list(now) != list(reversed(now)) else [[1, 0, 2], [1, 3]])
    elif "List[bool]" in kind:
        yield from (value for value in ([True, False], [False, True], [True, True]) if value != now)
    elif "bool" in kind:
        yield not now
    elif "float" in kind:
        yield now * 2 + 0.5
    elif "str" in kind:
        yield from (value for value in _STRINGS if value != now)
    elif "ScalarType" in str(argument.real_type):
        yield from (value for value in SCALAR_TYPES if value != now)
    elif "int" in kind:
        yield from (value for value in {*DTYPES, -2, -1, 2, 4} if value != now)
    else:
        raise AssertionError(f"{argument.name}: nothing to try for {kind}")


def _tensors(now: torch.Tensor | None, call: dict) -> Iterator[torch.Tensor | None]:
    if now is not None:
        yield _changed(now)
        return
    first = next(value for value in call.values() if isinstance(value, (torch.Tensor, list)))
    first = first[0] if isinstance(first, list) else first
    width = first.shape[-1]
    yield torch.rand(width).to(first.dtype if first.dtype.is_floating_point else torch.float32) + 1
    yield torch.rand(width, width).to(first.dtype if first.dtype.is_floating_point else torch.float32)
    yield torch.full((1,), 2.0)
    yield torch.ones(width, dtype=torch.int32)


def _changed(tensor: torch.Tensor) -> torch.Tensor:
    """Other values within what indices and masks may hold."""
    if tensor.dtype.is_floating_point:
        return tensor * 1.5 + 0.75
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.dtype == torch.int8:
        return -1 - tensor
    return tensor.flip(0) if tensor.numel() > 1 and not torch.equal(tensor, tensor.flip(0)) else tensor + 1
