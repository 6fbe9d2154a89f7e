"""Do random chains of layers, norms and scales stay right where norms are folded?"""

import torch
from folding import batch_norm, r, traced
from graphs import run_pass
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from aotair.graph.show import show
from aotair.passes import fold_norms

aten = torch.ops.aten


def chain(steps: list, x: torch.Tensor, constants: dict, made: bool) -> tuple:
    """What the steps compute of x, of which every size is 4 but the first. Constants that are not there are `made`."""

    def take(name: str, *shape: int) -> torch.Tensor:
        name = f"{name}_{'_'.join(map(str, shape))}"
        if made:
            constants.setdefault(name, r(*shape, seed=len(constants)).double().abs() + 0.5)
        return constants[name]

    values, kept = [x], []
    for kind, number, variant in steps:
        y, name = values[-1], f"{kind}{number % 7}"
        if kind == "convolution":
            groups, width = (1, 2)[number % 2], (1, 3)[variant % 2]
            weight, bias = take(name, 4, 4 // groups, width, width), take(name, 4) if variant & 2 else None
            call = F.conv_transpose2d if variant & 4 else F.conv2d
            y = call(y, weight, bias, padding=width // 2, groups=groups)
        elif kind == "linear":
            y = aten.linear.default(y, take(name, 4, 4), take(name, 4) if variant & 2 else None)
        elif kind == "norm":
            y = batch_norm(y, *(take(f"{name}{part}", 4) for part in "gbm"), take(f"{name}v", 4))
        elif kind == "scale":
            shape = [4 if place == number % 5 else 1 for place in range(1, 4)]
            value = take(name, *shape) if variant & 4 else (number + 1) / 3
            y = (torch.mul, torch.add, torch.sub, torch.div)[variant % 4](y, value)
        elif kind == "relu":
            y = y.relu()
        elif kind == "view":
            y = y.transpose(1 + number % 3, 1 + variant % 3)
        elif kind == "keep":
            kept.append(y)
        elif kind == "earlier":
            y = y + values[number % len(values)]
        elif kind == "write":
            aten.add_.Tensor(values[number % len(values)], 1)
        values.append(y)
    return values[-1], *kept


def steps(*kinds: str) -> st.SearchStrategy:
    return st.tuples(st.sampled_from(kinds), st.integers(0, 9), st.integers(0, 7))


LAYER, CHANGE = steps("convolution", "linear"), steps("norm", "scale", "scale")
BETWEEN = steps("relu", "view", "view", "keep", "earlier", "write")
PARTS = st.one_of(
    st.tuples(LAYER, CHANGE),
    st.tuples(LAYER, CHANGE),
    st.tuples(LAYER, CHANGE, CHANGE),
    st.tuples(LAYER, BETWEEN, CHANGE),
    st.tuples(CHANGE, LAYER),
    st.tuples(BETWEEN),
)


def tried(steps: list) -> int:
    """Checks that a chain stays right, in float64; gives how much was folded."""
    x, constants = r(2, 4, 4, 4).double(), {}
    chain(steps, x.clone(), constants, True)

    def function(x, **given):
        return chain(steps, x, given, False)

    module = traced(function, x, constants, symbolic=True)
    given, again = x.clone(), x.clone()
    want = [one.clone() for one in module(given, *constants.values())]
    before = show(module)
    count = run_pass(fold_norms, module).count
    got = module(again, *constants.values())
    for mine, wanted in zip(got, want, strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-9, atol=1e-9), f"{before}\n{show(module)}"
    assert torch.equal(given, again)
    return count


def test_random_chains_stay_right(request):
    count, folds = request.config.getoption("--graphs") or 60, []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @seed(0)
    @given(st.lists(PARTS, min_size=1, max_size=5))
    def run(parts: list) -> None:
        folds.append(tried([step for part in parts for step in part]))

    run()
    assert sum(folds) > count / 2, "most of them are no candidates"
