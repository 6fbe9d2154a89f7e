"""Fusion rules that the tests' recipes name."""

import torch

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
