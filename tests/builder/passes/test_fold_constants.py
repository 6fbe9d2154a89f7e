"""What depends on constants alone leaves the graph, with its program; and what stays there, and why."""

import pytest
import torch
from graphs import answers, run_pass, targets, trace

from aotair.graph.derived import derivations, mark_constant
from aotair.graph.operand import results_of
from aotair.graph.show import show
from aotair.passes import fold_constants

aten, air = torch.ops.aten, torch.ops.air
X, W, V = torch.randn(3, 4), torch.randn(4, 4), torch.randn(4)


def folded(function, *tensors: torch.Tensor, constants: int = 2, limit: int | None = None):
    """The graph after the pass, with the last inputs as constants, and what the pass said."""
    module = trace(function, *tensors)
    for node in module.graph.find_nodes(op="placeholder")[len(tensors) - constants :]:
        mark_constant(node)
    edits = run_pass(fold_constants, module, limit)
    return module, edits


def made(module: torch.fx.GraphModule, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the derivations give for these constants, by placeholder."""
    found = {}
    for placeholder, derivation, number in derivations(module.graph):
        graph = derivation.graph
        given = [tensors[node.name] for node in graph.find_nodes(op="placeholder")]
        found[placeholder.name] = torch.fx.GraphModule({}, graph)(*given)[number]
    return found


def same(function, *tensors: torch.Tensor, constants: int = 2) -> torch.fx.GraphModule:
    """After the pass, the graph answers as before, with what its derivations make."""
    before = trace(function, *tensors)
    want = answers(before, tensors)
    names = [node.name for node in before.graph.find_nodes(op="placeholder")]
    module, _ = folded(function, *tensors, constants=constants)
    values = dict(zip(names, tensors))
    values |= made(module, values)
    got = module(*[values[node.name] for node in module.graph.find_nodes(op="placeholder")])
    for one, wanted in zip(got, want):
        assert torch.equal(one, wanted), show(module)
    return module


def _cat(x, w, v):
    return (x @ torch.cat([w, w * v]).t(),)


def _shared(x, w, v):
    scale = w.abs().amax(1)
    return (x @ (w / scale) * scale,)


def _views(x, w, v):
    wide = w + v
    return x @ wide.t(), x + wide[0]


def _largest(x, w, v):
    values, places = w.max(1)
    return (x + values * places,)


def _numbers(x, w, v):
    return (x * (torch.arange(4) * 2.0 + 1),)


def _returned(x, w, v):
    return x + v, w * 2


@pytest.mark.parametrize(
    ("function", "count", "left"),
    [
        (_cat, 1, {aten.mm.default, aten.t.default}),
        (_shared, 2, {aten.mm.default, aten.mul.Tensor}),
        (_views, 1, {aten.mm.default, aten.t.default, aten.select.int, aten.add.Tensor}),
        (_largest, 1, {aten.add.Tensor}),
        (_numbers, 1, {aten.mul.Tensor}),
        (_returned, 1, {aten.add.Tensor}),
    ],
)
def test_it_moves_what_a_call_needs(function, count: int, left: set):
    module = same(function, X, W, V)
    assert len(list(derivations(module.graph))) == count
    assert set(targets(module)) == {str(op) for op in left}


def test_values_that_share_a_computation_are_made_together():
    module, _ = folded(_shared, X, W, V)
    (_, first, _), (_, second, _) = derivations(module.graph)
    assert first is second and len(results_of(first.graph)) == 2
    module, _ = folded(lambda x, w, v: (x @ (w * 2) + (v + 1),), X, W, V)
    (_, first, _), (_, second, _) = derivations(module.graph)
    assert first is not second


def test_a_value_that_lies_otherwise_is_stored_without_gaps():
    module = same(lambda x, w, v: (x @ (w.t() * 2), (w.t() * 2).relu()), X, W, V)
    for placeholder, _, _ in derivations(module.graph):
        assert placeholder.meta["val"].is_contiguous()


def _view(x, w, v):
    return (x @ w.t() + v[0],)


def _input(x, w, v):
    return (x * 2 @ w,)


def _filled(x, w, v):
    return (x + torch.ones(4),)


def _random(x, w, v):
    return (x + torch.rand_like(w)[0],)


def _written(x, w, v):
    y = w * 2
    aten.add_.Tensor(y, x[0])
    return (y,)


def _into_a_constant(x, w, v):
    aten.add_.Tensor(w, 1)
    return (x @ (w * 2),)


@pytest.mark.parametrize("function", [_view, _input, _filled, _random, _written, _into_a_constant])
def test_it_leaves(function):
    module, edits = folded(function, X, W, V)
    assert edits.count == 0 and not list(derivations(module.graph))
    assert targets(module) == targets(trace(function, X, W, V))


def test_a_constant_that_nobody_marked_is_an_input():
    module, edits = folded(_cat, X, W, V, constants=0)
    assert edits.count == 0 and not list(derivations(module.graph))


def test_what_would_take_much_more_memory_stays_and_what_it_is_made_of_does_not():
    wide = torch.randn(3, 1024)

    def spread(x, w, v):
        return (x @ (w.expand(1024, 1024) + v * 3),)

    module, edits = folded(spread, wide, torch.randn(1024), torch.randn(1024))
    (reason,) = [account.text for account in edits.accounts if not account.rewritten]
    assert "it would take 4,194,304 bytes, and what it follows from takes 8,192" in reason
    assert edits.count == 1 and len(list(derivations(module.graph))) == 1


def test_it_removes_what_it_moved_and_nothing_else():
    """A marker says on which stream others run, and has no readers."""

    def marked(x, w, v):
        air.scope_enter(["_user_stream_label"], ["side"])
        y = x @ (w * v)
        air.scope_exit()
        x.exp()
        return (y,)

    module, edits = folded(marked, X, W, V)
    assert edits.count == 1
    kept = ["air.scope_enter.default", "aten.mm.default", "air.scope_exit.default", "aten.exp.default"]
    assert targets(module) == kept


def test_it_stops_at_a_limit():
    module, edits = folded(lambda x, w, v: (x @ (w * 2) + (v + 1),), X, W, V, limit=1)
    assert edits.count == 1 and len(list(derivations(module.graph))) == 1
    module, edits = folded(_shared, X, W, V, limit=1)
    assert not list(derivations(module.graph)), "both or none of two that are made together"


def test_it_says_what_follows_from_what():
    _, edits = folded(_cat, X, W, V)
    assert [account.text for account in edits.accounts] == ["made of v_1, w_1 before any call"]
