"""What do the experts of transformers' models compute, so that shapes stay as they are and none is read in vain?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from ..ops.experts import COMBINE, PRODUCT, ROUTE

# Of experts, the name of a weight, rows, and where the rows of each expert end: each row times its expert's matrix.
Product = Callable[[Any, str, Tensor, Tensor], Tensor]


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers calls as the forward of experts: tokens (tokens, width), for each its k experts and weights."""
    return computed(self, hidden_states, top_k_index, top_k_weights, _product)


def computed(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor, product: Product) -> Tensor:
    """The same, with `product` for the two products."""
    if getattr(experts, "_is_expert_parallel", False):
        raise ModelError(
            "experts are spread over several processes",
            expected="a model that has all of its experts",
            fix="load it without a tensor-parallel plan",
        )
    first: Tensor | None = getattr(experts, "first_expert", None)
    if first is None:
        rows, places, ends = ROUTE(hidden, chosen, experts.num_experts)
    else:  # this rank has some of the experts; the rows of others come last, as one more's whose product nobody makes
        own = chosen - first
        own = own.masked_fill((own < 0) | (own >= experts.num_experts), experts.num_experts)
        rows, places, ends = ROUTE(hidden, own, experts.num_experts + 1)
        ends = ends[:-1]
    inner = product(experts, entering(experts), rows, ends)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    made = product(experts, "down_proj", inner, ends)
    if experts.has_post_expert_norm:
        made = experts.post_expert_norm(made)
    if first is not None:
        made = made.masked_fill((torch.arange(made.shape[0], device=made.device) >= ends[-1]).unsqueeze(-1), 0)
    combined: Tensor = COMBINE(made.to(hidden.dtype), places, weights)
    return combined


def entering(experts: Any) -> str:
    """The name of the weight that tokens meet first."""
    return "gate_up_proj" if experts.has_gate else "up_proj"


def weight_and_bias(experts: Any, name: str) -> tuple[Tensor, Tensor | None]:
    """The matrices (experts, in, out), as a view of what is stored so or as (experts, out, in), and their biases."""
    weight = experts.get_parameter(name)
    bias = experts.get_parameter(f"{name}_bias") if experts.has_bias else None
    return weight if experts.is_transposed else weight.transpose(1, 2), bias


def _product(experts: Any, name: str, rows: Tensor, ends: Tensor) -> Tensor:
    matrices, bias = weight_and_bias(experts, name)
    product: Tensor = PRODUCT(rows.to(matrices.dtype), matrices, ends, bias)
    return product
