"""Which form do the experts of transformers' models get, so that shapes stay as they are and none is read in vain?

transformers' own forms either ask which experts have a token (`eager`), or read the weights of an expert once for each
token (`batched_mm`), or call an op that no node has (`grouped_mm`).
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..ops.experts import COMBINE, PRODUCT, ROUTE

NAME = "aotair"


def serve(model: nn.Module) -> bool:
    """Let the experts of a model of transformers be computed by `experts_forward`; gives whether it has any that can.

    Models that have their experts in another form, such as Llama 4, keep it.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    switched = getattr(model, "set_experts_implementation", None)
    if switched is not None:
        switched(NAME)
    return any(hasattr(module, "is_transposed") and hasattr(module, "down_proj") for module in model.modules())


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers calls as the forward of experts: tokens (tokens, width), for each its k experts and weights."""
    if getattr(self, "_is_expert_parallel", False):
        raise ModelError(
            "experts are spread over several processes",
            expected="a model that has all of its experts",
            fix="load it without a tensor-parallel plan",
        )
    first: Tensor | None = getattr(self, "first_expert", None)
    if first is None:
        rows, places, ends = ROUTE(hidden_states, top_k_index, self.num_experts)
    else:  # this rank has some of the experts; the rows of others come last, as one more's whose product nobody makes
        own = top_k_index - first
        own = own.masked_fill((own < 0) | (own >= self.num_experts), self.num_experts)
        rows, places, ends = ROUTE(hidden_states, own, self.num_experts + 1)
        ends = ends[:-1]
    inner = _product(self, "gate_up_proj" if self.has_gate else "up_proj", rows, ends)
    inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
    made = _product(self, "down_proj", inner, ends)
    if self.has_post_expert_norm:
        made = self.post_expert_norm(made)
    if first is not None:
        made = made.masked_fill((torch.arange(made.shape[0], device=made.device) >= ends[-1]).unsqueeze(-1), 0)
    combined: Tensor = COMBINE(made.to(hidden_states.dtype), places, top_k_weights)
    return combined


def _product(experts: nn.Module, name: str, rows: Tensor, ends: Tensor) -> Tensor:
    """Each row times its expert's matrix, which is stored as (in, out) or as (out, in), and that expert's bias."""
    weight = experts.get_parameter(name)
    bias = experts.get_parameter(f"{name}_bias") if experts.has_bias else None
    matrix = weight if experts.is_transposed else weight.transpose(1, 2)
    product: Tensor = PRODUCT(rows.to(weight.dtype), matrix, ends, bias)
    return product
