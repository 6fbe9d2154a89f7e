"""Which overload of an op writes into tensors it is given."""

import functools

import torch

from aotair_runtime.format.written import written_names

from ..ops.host import vendor
from .target import Target

_FACTORY_OPTIONS = ("dtype", "layout", "device", "pin_memory")
# Whose out variants are not to be trusted: torch's own leaves R unwritten where Q and R both lie column by column.
_FAULTY = frozenset({torch.ops.aten.linalg_qr.default})


@functools.cache
def out_variant(op: torch._ops.OpOverload, target: Target) -> torch._ops.OpOverload | None:
    """The overload of `op` with the same arguments plus one out tensor for each result, where the target has a kernel
    for it: the generated ones compute elsewhere and copy. Options of factories (dtype, layout, device) are implied by
    the out tensor and may be missing from it.
    """
    if target.kind == "npu" and (found := vendor(op)) is not None:
        return found.out
    if op._schema.is_mutable or any(r.alias_info is not None for r in op._schema.returns):
        return None
    if op in _FAULTY or not all(str(r.type) == "Tensor" for r in op._schema.returns):
        return None
    packet = op._overloadpacket
    for name in packet.overloads():
        candidate: torch._ops.OpOverload = getattr(packet, name)
        if target.names(candidate) and _writes_results_of(candidate, op) and target.has_kernel(candidate):
            return candidate
    return None


def _writes_results_of(candidate: torch._ops.OpOverload, op: torch._ops.OpOverload) -> bool:
    outs = [a for a in candidate._schema.arguments if a.is_out]
    if len(outs) != len(op._schema.returns) or not outs or len(written_names(candidate._schema)) != len(outs):
        return False
    given = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    return given in (wanted, [item for item in wanted if item[0] not in _FACTORY_OPTIONS])
