"""What an instruction writes, by the schema of its op."""

from collections.abc import Iterator, Sequence

import torch

from ..errors import MalformedError
from .schema import Instruction, TensorArg


def written_names(schema: torch.FunctionSchema) -> list[str]:
    """The arguments that an op of that schema writes into: those that it marks, and a list of results that it does not
    mark."""
    return [
        a.name
        for a in schema.arguments
        if (a.alias_info is not None and a.alias_info.is_write) or (a.name == "out" and str(a.type) == "List[Tensor]")
    ]


def written_arguments(
    instruction: Instruction, schema: torch.FunctionSchema, written: Sequence[str]
) -> Iterator[TensorArg]:
    """The tensors among the arguments of those names."""
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
    if None not in results:
        if list(written) == ["out"] and len(results) == len(op._schema.returns) > 1:
            return {"out": list(results)}
        if len(written) == len(results):
            return dict(zip(written, results))
    raise MalformedError(f"{op} does not take {len(results)} out arguments", where=where)
