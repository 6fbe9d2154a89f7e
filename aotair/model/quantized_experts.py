"""Experts whose matrices are int8 with scales: what they compute, with which ops of the target, and which may be so.

They keep their own weights and biases, under their names, and compute on them: whoever builds the graph does that once,
and again for other weights.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from aotair_runtime.devices import grouped_int8

from ..target.target import Target
from .experts import computed, entering, weight_and_bias
from .quantized_linear import MOST_INPUTS, NPU_MOST, rounded_tokens
from .rounding import rounded_matrices

_npu = torch.ops.npu
_NPU_MOST_EXPERTS = 1024  # of one call


class QuantizedExperts:
    """What stands in front of the class of experts that are quantised; with `weights_alone` activations stay floats."""

    target: Target
    weights_alone: bool

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return computed(self, hidden_states, top_k_index, top_k_weights, type(self).product)

    def product(self, name: str, rows: Tensor, ends: Tensor) -> Tensor:
        """Each row times its expert's matrix, and that expert's bias; rows of no expert are anything."""
        matrices, bias = weight_and_bias(self, name)
        rows = rows.to(matrices.dtype)
        if self.weights_alone:
            return _weights_alone_on_npu(rows, matrices, bias, ends)
        product = _npu_product(rows, matrices, ends) if self.target.kind == "npu" else _product(rows, matrices, ends)
        if bias is not None:
            product = product + bias.index_select(0, _experts_of(rows, ends)).to(product.dtype)
        return product.to(rows.dtype)


def quantized_experts(experts: nn.Module, scheme: str, target: Target) -> nn.Module:
    """What stands for a module of experts: a copy over the same tensors."""
    tensors = [*experts.parameters(), *experts.buffers()]
    made = copy.deepcopy(experts, {id(tensor): tensor for tensor in tensors})
    kind, said = type(experts), {"target": target, "weights_alone": scheme.endswith("weight_only")}
    made.__class__ = type(f"Quantized{kind.__name__}", (QuantizedExperts, kind), said)
    return made.eval()


def weights_of(module: nn.Module) -> list[Tensor]:
    """The matrices of a module of experts, which transformers lets be computed in several forms; none of any other."""
    if not all(hasattr(module, name) for name in ("is_transposed", "has_bias", "has_gate", "num_experts")):
        return []
    own: dict[str, Tensor] = dict(module.named_parameters(recurse=False))
    found = [own[name] for name in (entering(module), "down_proj") if name in own and own[name].dim() == 3]
    return found if len(found) == 2 else []


def unfit_experts(module: Any, target: Target) -> str:
    """Why a target has no kernel for such experts; empty where it has."""
    for weight in weights_of(module):
        number, width, out = weight.shape if module.is_transposed else weight.transpose(1, 2).shape
        if not weight.numel():
            return "a weight without elements"
        if width > MOST_INPUTS:
            return f"{width} inputs: sums of more than {MOST_INPUTS} products of int8 may not fit int32"
        if target.kind == "npu" and max(width, out) > NPU_MOST:
            return f"more than {NPU_MOST} rows or columns"
        if target.kind == "npu" and number > _NPU_MOST_EXPERTS:
            return f"{number} experts, more than {_NPU_MOST_EXPERTS}"
    return ""


def _product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """In float32."""
    tokens, by_token = rounded_tokens(rows.float())
    weight, scale = rounded_matrices(matrices)
    sums = grouped_int8.OP(tokens, weight.transpose(1, 2), ends)
    scaled: Tensor = sums * by_token * scale.index_select(0, _experts_of(rows, ends))
    return scaled


def _experts_of(rows: Tensor, ends: Tensor) -> Tensor:
    """Of each row the number of its expert, or of any where it has none."""
    number = torch.arange(rows.shape[0], device=rows.device)
    return torch.searchsorted(ends, number, right=True).clamp_max(ends.shape[0] - 1)


def _npu_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """In the dtype of rows. The kernel takes scales of bfloat16 beside results in it, else of float32."""
    tokens, by_token = _npu.npu_dynamic_quant(rows)
    kind = torch.bfloat16 if rows.dtype == torch.bfloat16 else torch.float32
    weight, scale = rounded_matrices(matrices, kind)
    made: list[Tensor] = _npu.npu_grouped_matmul(
        [tokens],
        [weight.transpose(1, 2).contiguous()],
        scale=[scale],
        per_token_scale=[by_token],
        group_list=ends.to(torch.int64),
        group_list_type=0,
        group_type=0,
        split_item=3,
        output_dtype=rows.dtype,
    )
    return made[0]


def _weights_alone_on_npu(rows: Tensor, matrices: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    weight, scale = rounded_matrices(matrices, rows.dtype)
    # The kernel adds float32 to products of bfloat16, and has no form without offsets.
    added = None if bias is None else [bias.float() if bias.dtype == torch.bfloat16 else bias]
    made: list[Tensor] = _npu.npu_grouped_matmul(
        [rows],
        [weight.transpose(1, 2).contiguous()],
        bias=added,
        antiquant_scale=[scale],
        antiquant_offset=[torch.zeros_like(scale)],
        group_list=ends.to(torch.int64),
        group_list_type=0,
        group_type=0,
        split_item=3,
    )
    return made[0]
