"""Graphs with constants, before and after norms are folded: traced as export gives them, and compared with values."""

import torch
from graphs import run_pass, targets
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from aotair.fusion.matcher import fwd_only
from aotair.graph.derived import mark_constant
from aotair.graph.show import show
from aotair.passes import fold_norms

aten = torch.ops.aten


def r(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def statistics(channels: int) -> dict[str, torch.Tensor]:
    return {
        "gamma": r(channels, seed=1),
        "beta": r(channels, seed=2),
        "mean": r(channels, seed=3),
        "var": r(channels, seed=4).abs() + 0.1,
    }


def traced(function, x, constants: dict, symbolic: bool = False, marked=None) -> torch.fx.GraphModule:
    """The graph of `function(x, **constants)`, as export would give it; `symbolic`: in the first size of x. Constants
    are marked as such: all, or those of `marked`."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    sizes = [DimDynamic.DYNAMIC if symbolic and not dim else DimDynamic.STATIC for dim in range(x.dim())]
    given = [mode.from_tensor(one, static_shapes=True) for one in constants.values()]
    fake = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    def run(x, *given):
        return function(x, **dict(zip(constants, given)))

    module = fwd_only(run, [fake, *given], run_functional_passes=False)
    module.graph.eliminate_dead_code()
    for name, node in zip(constants, module.graph.find_nodes(op="placeholder")[1:]):
        if marked is None or name in marked:
            mark_constant(node)
    module.recompile()
    return module


def folded(function, x, constants: dict, count: int | None = None, **options) -> torch.fx.GraphModule:
    """The graph after the pass, which made that many rewrites, and gives the same numbers and changes no input."""
    module = traced(function, x, constants, **options)
    want = module(x.clone(), *constants.values())
    edits = run_pass(fold_norms, module)
    given = [x.clone(), *(one.clone() for one in constants.values())]
    for got, wanted in zip(module(*given), want, strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert all(map(torch.equal, given[1:], constants.values()))
    for node in module.graph.find_nodes(op="output")[0].args[0]:
        assert node.meta["val"].dtype == want[0].dtype
    assert count is None or edits.count == count, show(module)
    return module


def batch_norm(y, gamma=None, beta=None, mean=None, var=None, training=False):
    return aten._native_batch_norm_legit_no_training.default(y, gamma, beta, mean, var, 0.1, 1e-5)[0]


def names(module: torch.fx.GraphModule) -> list[str]:
    module.graph.eliminate_dead_code()
    return [target.split(".")[1] for target in targets(module) if target.startswith("aten")]


def why(function, x, constants, **options) -> str:
    """What the pass says of the one candidate that it leaves alone."""
    module = traced(function, x, constants, **options)
    before = show(module)
    edits = run_pass(fold_norms, module)
    assert edits.count == 0 and show(module) == before
    (account,) = edits.accounts
    return account.text
