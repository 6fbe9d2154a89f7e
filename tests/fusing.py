"""Small graphs for the tests of fusion rules: fused by one rule, with their numbers checked."""

import near
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from aotair import fusion
from aotair.passes import fuse as step
from aotair.passes.edits import Edits

npu = torch.ops.npu
F16 = torch.float16


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(F16)


ROWS = (half(2, 3, 32), half(2, 3, 32, seed=1), half(32, seed=2))
SCALES, POINTS = half(32).abs() + 1, half(32).round().int()


def fuse(rule: str, function, *inputs: torch.Tensor):
    """The fused graph's ops and what the rule said of what it left; the numbers are checked."""
    _, after, edits = near.fused(function, inputs, (rule,))
    wrong = near.difference(function, inputs, after)
    assert wrong is None, wrong
    ops = [str(node.target) for node in after.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return ops, [account.text for account in edits[rule].accounts if not account.rewritten], edits[rule].count


def fires(rule: str, op: str, function, *inputs: torch.Tensor) -> list[str]:
    ops, left, count = fuse(rule, function, *inputs)
    assert count == 1 and not left and f"npu.{op}.default" in ops, (ops, left)
    return ops


def declines(rule: str, why: str, function, *inputs: torch.Tensor) -> None:
    ops, left, count = fuse(rule, function, *inputs)
    assert count == 0, ops
    assert any(why in reason for reason in left), left


def norm(x1, x2, gamma, *epsilon):
    return npu.npu_add_rms_norm.default(x1, x2, gamma, *epsilon)


def quantised(change=lambda y: y, **options):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(change(y), **options)
        return q, scale, x

    return function


def known(rule: str) -> fusion.Rule:
    return next(one for one in fusion.RULES if one.name == rule)


def symbolic(rule: str, function, *inputs: torch.Tensor) -> Edits:
    """What the rule did in the graph of a function whose sizes are symbols."""
    edits = near.edits_of(rule)
    step.run(make_fx(function, tracing_mode="symbolic")(*inputs), edits, known(rule))
    return edits
