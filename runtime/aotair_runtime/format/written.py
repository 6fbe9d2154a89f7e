"""What an instruction writes, by the schema of its op."""

import functools
from collections.abc import Iterator, Sequence

import torch

from ..errors import MalformedError
from .schema import Instruction, TensorArg


def written_names(schema: torch.FunctionSchema) -> tuple[str, ...]:
    """The arguments that an op of that schema writes into: those that it marks, and a list of results that it does not
    mark."""
    return tuple(
        a.name
        for a in schema.arguments
        if (a.alias_info is not None and a.alias_info.is_write) or (a.name == "out" and str(a.type) == "List[Tensor]")
    )


@functools.cache
def written_by(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """The same of an op."""
    return written_names(op._schema)


def written_arguments(
    instruction: Instruction, schema: torch.FunctionSchema, written: Sequence[str]
) -> Iterator[TensorArg]:
    """The tensors among the arguments of those names."""
    if not written:
        return
    given = dict(zip((a.name for a in schema.arguments), instruction.args)) | dict(instruction.kwargs)
    for name in written:
        values = given.get(name)
        for arg in values if isinstance(values, tuple) else (values,):
            if isinstance(arg, TensorArg):
                yield arg


def out_arguments(
    op: torch._ops.OpOverload, written: Sequence[str], results: Sequence[torch.Tensor | None], where: str
) -> dict[str, object]:
    """The places of an op's results as its out arguments `written`, or as the one list that some ops take. Raises
    MalformedError where the op takes others, or a place is missing."""
    if all(one is not None for one in results):
        if list(written) == ["out"] and len(results) == len(op._schema.returns) > 1:
            return {"out": list(results)}
        if len(written) == len(results):
            return dict(zip(written, results))
    raise MalformedError(f"{op} does not take {len(results)} out arguments", where=where)
