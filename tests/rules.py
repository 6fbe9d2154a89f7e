"""Fusion rules that the tests' recipes name, and models for them."""

import functools

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import aotair


def linear_as_product() -> None:
    def linear(x, weight, bias):
        return torch.nn.functional.linear(x, weight, bias)

    def product(x, weight, bias):
        return torch.nn.functional.linear(x, weight) + bias

    aotair.register_replacement(linear, product, [torch.randn(2, 4), torch.randn(3, 4), torch.randn(3)])


def nothing() -> None:
    """Registers no rule."""


def broken() -> None:
    1 / 0  # noqa: B018


def add_and_norm(x1, x2, gamma):
    xOut = torch.add(x1, x2)
    y, _ = torch.ops.npu.npu_rms_norm(xOut, gamma)
    return y, xOut


def add_rms_norm(x1, x2, gamma):
    y, _, xOut = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    return y, xOut


def wide(match) -> bool:
    return match.kwargs["x1"].meta["val"].shape[-1] == 7168


def norms_of_7168() -> None:
    """The example in TorchAir's documents: its inputs lie on an NPU, and its check looks at a width."""
    with FakeTensorMode():
        rows = functools.partial(torch.empty, (1, 1, 2), device="npu", dtype=torch.float16)
        weights = functools.partial(torch.empty, 2, device="npu", dtype=torch.float16)
        aotair.register_replacement(
            search_fn=add_and_norm,
            replace_fn=add_rms_norm,
            example_inputs=(rows(), rows(), weights()),
            extra_check=wide,
        )


class AddAndNorm(torch.nn.Module):
    """The model of that example."""

    def forward(self, data1, data2, gamma):
        xOut = torch.add(data1, data2)
        y, _ = torch.ops.npu.npu_rms_norm(xOut, gamma)
        return torch.abs(y), torch.sqrt(xOut)


class Norms(torch.nn.Module):
    """Residual sums and RMS norms in a row: each with a width, an epsilon, and written as npu ops or as plain ones."""

    def __init__(self, places: list):
        super().__init__()
        self.places = places
        self.gammas = torch.nn.ParameterList([torch.rand(width).half() + 0.5 for width, _, _ in places])

    def forward(self, x):
        results = []
        for number, (gamma, (width, epsilon, plain)) in enumerate(zip(self.gammas, self.places)):
            total = torch.add(x[:, :width], x[:, -width:] * (number + 2))
            results += [self.norm(total, gamma, epsilon, plain), total * 2]
        return tuple(results)

    @staticmethod
    def norm(total, gamma, epsilon, plain):
        if not plain:
            return torch.ops.npu.npu_rms_norm(total, gamma, epsilon)[0]
        wide = total.float()
        return gamma * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(total.dtype)
