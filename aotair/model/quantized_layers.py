"""The modules that stand for linear layers, as the recipe's `quantize` asks.

Each keeps the layer's own weight and bias, under their names, and computes on them: whoever builds the graph does that
once, and again for other weights.
"""

import torch
from torch import Tensor, nn

from ..recipe.quantize_part import Scheme, bits, is_weight_only
from ..target.target import Target
from .quantized_linear import int8_activations, weight_only
from .rounding import rounded


class Int8Linear(nn.Module):
    """`x @ weight.T + bias` with int8 weights, a scale for each channel, and int8 activations.

    The activations bring a scale for each token; where `largest` is given, the largest absolute value of a calibration,
    all have the one of the buffer `input_scale`, which no checkpoint holds: it stays when other weights are loaded.
    """

    input_scale: Tensor | None

    def __init__(self, linear: nn.Linear, target: Target, largest: float | None = None):
        super().__init__()
        self.weight, self.bias, self._target = linear.weight, linear.bias, target
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = None if largest is None else torch.tensor([largest / 127 or 1.0], dtype=torch.float32)
        self.register_buffer("input_scale", scale, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        return int8_activations(input, rounded(self.weight, 8), self.bias, self._target, self.input_scale)


class WeightOnlyLinear(nn.Module):
    """`x @ weight.T + bias` with weights of 8 or 4 bits, and a scale for each group of neighbours or each row. The
    kernels of CPUs are those of bfloat16: others round the activations to that, and have the result in their own
    dtype."""

    def __init__(self, linear: nn.Linear, target: Target, bits: int, group: int | None):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._target, self._bits, self._group = target, bits, group

    def forward(self, input: Tensor) -> Tensor:
        kind = torch.bfloat16 if self._target.kind == "cpu" else input.dtype
        weight = rounded(self.weight, self._bits, self._group, kind)
        if kind == input.dtype:
            return weight_only(input, weight, self.bias, self._target)
        product = weight_only(input.to(kind), weight, None, self._target).to(input.dtype)
        return product if self.bias is None else product + self.bias


def quantized(linear: nn.Linear, scheme: Scheme, group: int | None, target: Target, largest: float | None) -> nn.Module:
    """What stands for a layer; `largest` is the largest absolute value of its inputs, with int8_static alone."""
    if is_weight_only(scheme):
        return WeightOnlyLinear(linear, target, bits(scheme), group)
    return Int8Linear(linear, target, largest).eval()
