"""Random graphs with writes in the middle through each pass and through all: no output and no input changes its value.

What export makes has its writes at the end. Custom passes, and ops that write into their arguments, make others.
"""

import random

import pytest
import torch
from graphs import answers, run_pass, trace

from aotair.graph.show import show
from aotair.passes import (
    canonicalise,
    merge_duplicates,
    recover_view_inplace,
    reinplace_inplaceable_ops,
    reinplace_input_mutated_ops,
    remove_cat_ops,
    remove_dead_code,
    remove_noop_ops,
    remove_self_copies,
)

aten = torch.ops.aten
PASSES = [
    remove_noop_ops,
    merge_duplicates,
    recover_view_inplace,
    reinplace_inplaceable_ops,
    reinplace_input_mutated_ops,
    remove_self_copies,
    remove_cat_ops,
    remove_dead_code,
]
INPUTS = (torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4))
COPIES = ("clone", "clone", "clone", "copy", "same_view", "cast")
PURE = ("add", "relu", "mul", "cat")
VIEWS = ("t", "rows", "row", "flat", "alias")
WRITES = ("add_", "add_", "copy_", "relu_", "index_copy_")


def random_function(seed: int):
    """A function of three matrices that returns a few of its values."""
    chooser = random.Random(seed)
    steps = [
        (
            chooser.choice(chooser.choice((COPIES, COPIES, PURE, VIEWS, WRITES, WRITES))),
            *chooser.choices(range(99), k=3),
        )
        for _ in range(chooser.randint(3, 14))
    ]
    back = [chooser.randrange(99) for _ in range(chooser.randint(0, 2))]

    def function(*inputs: torch.Tensor) -> tuple:
        values = list(inputs)
        for op, *numbers in steps:
            a, b = (values[number % len(values)] for number in numbers[:2])
            made = step(op, a, b, numbers[2])
            if made is not None:
                values.append(made)
        for position, number in enumerate(back):  # what export makes of a mutation
            value = values[number % len(values)]
            if value.shape == inputs[position].shape:
                aten.copy_.default(inputs[position], value.clone() if _share(value, inputs[position]) else value)
        return tuple(value for value in values[3:][-4:]) or (inputs[0] + 1,)

    return function


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def step(op: str, a: torch.Tensor, b: torch.Tensor, number: int) -> torch.Tensor | None:
    """One step, or None where it does not fit."""
    fits = a.shape == b.shape
    if op == "clone":
        return a.clone()
    if op == "copy":
        return aten.copy.default(a, b) if fits else None
    if op == "same_view":
        return a.view(a.shape) if a.is_contiguous() else a.transpose(0, 0)
    if op == "cast":
        return aten._to_copy.default(a, dtype=a.dtype)
    if op in ("add", "mul"):
        return getattr(torch, op)(a, b) if fits else a + number
    if op == "relu":
        return a.relu()
    if op == "cat":
        return torch.cat([a, b]) if a.dim() == b.dim() and a.shape[1:] == b.shape[1:] and a.numel() < 64 else None
    if op in VIEWS:
        return _view(op, a, number)
    if op == "relu_":
        a.relu_()
    elif op == "index_copy_" and a.dim() == 2 and a.shape[0] > 1:
        return a.index_copy_(0, torch.tensor([number % a.shape[0]]), a[:1].clone())
    elif fits and op in ("add_", "copy_"):
        other = b if a is b else b.clone()
        return getattr(a, op)(other)
    return None


def _view(op: str, a: torch.Tensor, number: int) -> torch.Tensor | None:
    if op == "t":
        return a.t()
    if op == "rows":
        return a[number % a.shape[0] :]
    if op == "row":
        return a[number % a.shape[0]] if a.dim() > 1 else None
    if op == "flat":
        return a.view(-1) if a.is_contiguous() else None
    return aten.alias.default(a)


def wrong_after(steps: list, seed: int) -> str:
    """What is wrong after these passes, or nothing."""
    module = trace(random_function(seed), *INPUTS)
    before, want = show(module), answers(module, INPUTS)
    for one in steps:
        run_pass(one, module)
        pairs = zip(answers(module, INPUTS), want, strict=True)
        if not all(torch.equal(got, wanted) for got, wanted in pairs):
            return f"{one.__name__}\n{before}\n{show(module)}"
    return ""


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.__name__.rpartition(".")[2])
def test_one_pass(step):
    for seed in range(70):
        assert wrong_after([step], seed) == ""


def test_all_passes_one_after_the_other_in_any_order():
    for seed in range(70):
        order = random.Random(seed).sample(PASSES, len(PASSES))
        assert wrong_after([canonicalise, *order, *PASSES], seed) == ""
