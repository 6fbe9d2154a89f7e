"""Ops that take lengths as lists of the host, as ops that take them as tensors: `air::NAME` beside `npu::npu_NAME`.

A graph cannot hold a list whose length is a symbol. There the list is a tensor, the argument `NAME_tensor`; for an NPU
the emitter makes a host argument of it again, elsewhere the op with the tensor is the instruction. `npu/lengths.py`
defines them; this is the table.
"""

from dataclasses import dataclass

import torch

PREFIX = "npu_"
SUFFIX = "_tensor"
# By op of torch_npu: its lists of lengths.
LISTS = {
    "npu_fused_infer_attention_score": (
        "actual_seq_lengths",
        "actual_seq_lengths_kv",
        "actual_shared_prefix_len",
    ),
    "npu_fused_infer_attention_score_v2": ("actual_seq_qlen", "actual_seq_kvlen"),
}


@dataclass(frozen=True)
class VendorOp:
    """The overload that writes into given results, with lists, and the op that makes its workspace."""

    out: torch._ops.OpOverload
    workspace: torch._ops.OpOverload


def with_tensors(name: str) -> torch._ops.OpOverload:
    """The op that takes tensors where `npu::name` takes lists."""
    op: torch._ops.OpOverload = getattr(torch.ops.air, name.removeprefix(PREFIX)).default
    return op


def vendor(op: torch._ops.OpOverload) -> VendorOp | None:
    """The calls of torch_npu that an op with tensors stands for on the device."""
    name: str = PREFIX + op.name().partition("::")[2]
    if op.namespace != "air" or name not in LISTS:
        return None
    return VendorOp(getattr(torch.ops.npu, name).out, getattr(torch.ops.npu, f"_{name}_get_max_workspace").default)
