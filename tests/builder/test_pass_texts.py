"""What each pass does to a graph, as text: before and after, in one golden file for each pass."""

import pytest
import torch
from graphs import run_pass, trace

from aotair.graph.show import show
from aotair.passes import (
    canonicalise,
    merge_copies,
    merge_duplicates,
    recover_view_inplace,
    reinplace_inplaceable_ops,
    reinplace_input_mutated_ops,
    remove_cat_ops,
    remove_dead_code,
    remove_noop_ops,
    remove_self_copies,
    streams,
)

aten, air = torch.ops.aten, torch.ops.air
X, CACHE, ROW, INDEX = torch.ones(4, 6), torch.zeros(4, 6), torch.ones(1, 6), torch.tensor([2])


def noops(x, cache, row, index):
    return (x.clone().view(4, 6).transpose(1, 1)[0:4] + 1,)


def dead(x, cache, row, index):
    x * 3
    aten.copy_.default(cache, x)
    return (x + 1,)


def through_views(x, cache, row, index):
    aten.copy_.default(cache, cache.slice_scatter(row, 0, 1, 2).view(2, 12).view(4, 6))
    return (x + 1,)


def side_stream(x, cache, row, index):
    product = x @ x.t()
    air.scope_enter(["_user_stream_label"], ["side"])
    positive = product.abs()
    air.scope_exit()
    aten.copy_.default(cache, x)
    return positive + 1, cache.sum(0)


def intermediates(x, cache, row, index):
    y = (x * 2).relu()
    return y + 1, x.relu()


def mutated(x, cache, row, index):
    new = cache.index_copy(0, index, row).index_add(0, index, row)
    seen = new.sum(0)
    aten.copy_.default(cache, new)
    return (seen,)


def self_copies(x, cache, row, index):
    aten.copy_.default(cache, aten.add_.Tensor(cache, 1))
    return (x + 1,)


def slices(x, cache, row, index):
    part = cache[1:2]
    aten.copy_.default(part, aten.copy.default(part, row))
    aten.copy_.default(cache[2:3], cache[2:3].slice_scatter(row[:, :3], 1, 2, 5))
    return (x + 1,)


def duplicates(x, cache, row, index):
    y = x.relu() * 2
    return (y + x.relu() * 2, aten.add.Tensor(y, 1, alpha=1))


def casts(x, cache, row, index):
    return (x.to(torch.float64).type_as(row),)


def cats(x, cache, row, index):
    return (torch.cat([x.tanh(), row, row.exp()]),)


CASES = {
    remove_noop_ops: noops,
    remove_dead_code: dead,
    recover_view_inplace: through_views,
    streams: side_stream,
    reinplace_inplaceable_ops: intermediates,
    reinplace_input_mutated_ops: mutated,
    remove_self_copies: self_copies,
    remove_cat_ops: cats,
    merge_copies: slices,
    merge_duplicates: duplicates,
    canonicalise: casts,
}


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__.rpartition(".")[2])
def test_before_and_after(step, golden_text):
    module = trace(CASES[step], X, CACHE, ROW, INDEX)
    before = show(module)
    edits = run_pass(step, module)
    name = step.__name__.rpartition(".")[2]
    golden_text(f"pass_{name}.txt", f"{before}\n---- {name}: {edits.count} rewrites\n\n{show(module)}")
