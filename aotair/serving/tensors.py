"""How do tensors travel in the Open Inference Protocol (v2, of KServe)? As JSON: name, shape, datatype and numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from aotair_runtime.errors import ArgumentError
from aotair_runtime.format.schema import EntryPoint, Input, Output, Program
from aotair_runtime.format.sizes import evaluate
from aotair_runtime.format.structure import leaf_names
from aotair_runtime.format.torch_names import dtype

DATATYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}
_NAMES = {kind: name for name, kind in DATATYPES.items()}
_MOST_DIMS = 16
_BYTES_OF_A_NUMBER, _BYTES_OF_THE_REST = 64, 1 << 16


def read_inputs(entry: EntryPoint, given: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """The tensors of a request, on the host, by name. Raises ArgumentError where they are not those of the entry point:
    other names, dtypes or dimensions, numbers that do not fit, or values that the recipe says it does not take."""
    known = {one.name: one for one in entry.inputs}
    names = [one.get("name") for one in given]
    if sorted(map(str, names)) != sorted(known):
        raise ArgumentError("other inputs than the entry point takes", expected=", ".join(known), got=str(names)[:200])
    return {str(one["name"]): _read(known[str(one["name"])], one) for one in given}


def written(outputs: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Tensors as the protocol has them: numbers in row-major order."""
    return [
        {"name": name, "shape": list(one.shape), "datatype": _NAMES[one.dtype], "data": one.flatten().tolist()}
        for name, one in outputs.items()
    ]


def metadata(entry: EntryPoint) -> dict[str, list[dict[str, Any]]]:
    """What the inputs and outputs of an entry point are; -1 stands for a dimension that varies."""
    outputs = zip(leaf_names(entry.structure), entry.outputs, strict=True)
    return {
        "inputs": [_about(one.name, one) for one in entry.inputs],
        "outputs": [_about(name, one) for name, one in outputs],
    }


def _about(name: str, one: Input | Output) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in one.shape]
    return {"name": name, "shape": shape, "datatype": _NAMES[dtype(one.dtype)]}


def most_bytes(program: Program) -> int:
    """How long a request in JSON may be: room for the numbers of the largest call, and some for the rest."""
    calls = ((entry, bucket.sizes) for entry in program.entry_points for bucket in entry.buckets)
    numbers = (
        sum(math.prod(evaluate(size, sizes) for size in one.shape) for one in entry.inputs) for entry, sizes in calls
    )
    return _BYTES_OF_A_NUMBER * max(numbers) + _BYTES_OF_THE_REST


def refuse_unserved(entry: EntryPoint) -> None:
    """Raises ArgumentError where calls of an entry point cannot be made over a network."""
    for one in entry.inputs:
        if one.kind == "mutated":
            raise ArgumentError(
                f"calls of {entry.name} write into the input {one.name}, which is the caller's own memory"
            )
    tensors: list[Input | Output] = [*entry.inputs, *entry.outputs]
    for kind in {one.dtype for one in tensors}:
        if dtype(kind) not in _NAMES:
            raise ArgumentError(f"{kind}, of a tensor of {entry.name}, has no name in the protocol")


def _read(one: Input, given: Mapping[str, Any]) -> torch.Tensor:
    kind, where = dtype(one.dtype), f"input {one.name}"
    if given.get("datatype") != _NAMES[kind]:
        raise ArgumentError("another datatype", where=where, expected=_NAMES[kind], got=str(given.get("datatype"))[:20])
    shape, data = given.get("shape"), given.get("data")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMS or any(type(n) is not int or n < 0 for n in shape):
        raise ArgumentError("shape is no list of sizes", where=where, got=str(shape)[:80])
    try:
        plain = torch.tensor(data, dtype=torch.float64 if kind.is_floating_point else None).reshape(shape)
        made = plain.to(kind)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        message = str(error).partition("\n")[0][:120]
        raise ArgumentError("data is no tensor of this shape and datatype", where=where, got=message) from error
    exact = made.isfinite() == plain.isfinite() if kind.is_floating_point else made.to(plain.dtype) == plain
    if plain.is_floating_point() > kind.is_floating_point or not exact.all():
        raise ArgumentError("numbers that this datatype does not have", where=where, expected=_NAMES[kind])
    _refuse_values(one, made, where)
    return made


def _refuse_values(one: Input, made: torch.Tensor, where: str) -> None:
    if one.value_range is None or not made.numel():
        return
    low, high = one.value_range
    least, most = (float(found) for found in made.aminmax())
    if not low <= least or not most < high:
        raise ArgumentError(
            "values that the model does not take", where=where, expected=f"{low:g} to below {high:g}",
            got=f"{least:g} to {most:g}",
        )  # fmt: skip
