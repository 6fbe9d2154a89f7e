"""Calls cut along their first dimension: which, into how many, and with the same numbers."""

import operator

import pytest
import torch
from nodes import for_device
from torch.fx.node import Node

import aotair
from aotair.lower import slices
from aotair.lower.graph_builder import GraphBuilder
from aotair.lower.slices import LIMIT, slice_bounds, sliced_arguments
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Form


def test_calls_are_cut_into_slices_only_where_that_helps(tmp_path):
    wide = for_device("encoder", "npu") | {"buckets": {"batch": [64], "seq": [16]}}
    wide["model"] = wide["model"] | {"kwargs": {"width": 512, "heads": 2}}
    program = read_program(aotair.build(wide, tmp_path / "npu.aotair"))
    copied = [i for i in program.instructions if i.form == Form.COPY]
    assert len({i.node for i in copied}) == len(copied)


# ---- which, and how many ---------------------------------------------------------------------------------------------

aten = torch.ops.aten
NORM, RMS, ATTENTION = aten.layer_norm.default, aten.rms_norm.default, aten.scaled_dot_product_attention.default


def call(op, *args, **kwargs) -> Node:
    """A call of an op on fake tensors like the given ones."""
    build = GraphBuilder()

    def place(value):
        if not isinstance(value, torch.Tensor):
            return value
        name = f"x{len(build.graph.nodes)}"
        return build.placeholder(name, tuple(value.shape), value.stride(), value.dtype)

    return build.call(op, *map(place, args), **{name: place(value) for name, value in kwargs.items()})


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


CALLS = {
    "a norm": (NORM, (numbers(6, 8), [8]), {}, ("input",)),
    "a norm with weights": (NORM, (numbers(6, 8), [8], numbers(8), numbers(8)), {}, ("input",)),
    "weights with the size of the rows": (NORM, (numbers(8, 8), [8], numbers(8)), {}, ("input",)),
    "a norm over two": (NORM, (numbers(6, 3, 8), [3, 8]), {}, ("input",)),
    "a norm of what is not in order": (NORM, (numbers(8, 6).t(), [8]), {}, ("input",)),
    "an rms norm": (RMS, (numbers(6, 2, 8), [8], numbers(8)), {}, ("input",)),
    "half": (NORM, (numbers(6, 8, dtype=torch.bfloat16), [8]), {}, ("input",)),
    "attention": (ATTENTION, (numbers(4, 2, 3, 8),) * 3, {}, ("query", "key", "value")),
    "one mask": (ATTENTION, (numbers(4, 2, 3, 8),) * 3 + (numbers(3, 3),), {}, ("query", "key", "value")),
    "masks": (
        ATTENTION,
        (numbers(4, 2, 3, 8),) * 3 + (numbers(4, 1, 3, 3),),
        {},
        ("query", "key", "value", "attn_mask"),
    ),
    "a mask by name": (
        ATTENTION,
        (numbers(4, 2, 3, 8),) * 3,
        {"attn_mask": numbers(4, 2, 3, 3)},
        ("query", "key", "value", "attn_mask"),
    ),
    "a mask for all": (
        ATTENTION,
        (numbers(4, 2, 3, 8),) * 3,
        {"attn_mask": numbers(1, 1, 3, 3)},
        ("query", "key", "value"),
    ),
    "one row": (NORM, (numbers(1, 8), [8]), {}, ("input",)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("limit", [1, 100, 1 << 20])
def test_slices_give_the_same_numbers(name, limit, monkeypatch):
    op, args, kwargs, wanted = CALLS[name]
    monkeypatch.setattr(slices, "LIMIT", limit)
    node = call(op, *args, **kwargs)
    assert sliced_arguments(node) == wanted
    names = [argument.name for argument in op._schema.arguments]
    found = []
    for start, stop in slice_bounds(node):
        rows = [arg[start:stop] if key in wanted else arg for key, arg in zip(names, args)]
        found.append(op(*rows, **{key: arg[start:stop] if key in wanted else arg for key, arg in kwargs.items()}))
    torch.testing.assert_close(torch.cat(found), op(*args, **kwargs))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.exp.default, (numbers(6, 8),)),  # none of those
        (operator.getitem, ([numbers(6, 8)], 0)),  # no op
        (NORM, (numbers(8), [8])),  # one dimension
        (NORM, (numbers(6, 8), [6, 8])),  # the first dimension is normalised too
        (RMS, (numbers(6, 8), [6, 8])),
        (aten.native_layer_norm.default, (numbers(6, 8), [8], None, None, 1e-5)),  # several results
        (ATTENTION, (numbers(4, 2, 3, 8), numbers(1, 2, 3, 8), numbers(4, 2, 3, 8))),  # keys that all share
        (ATTENTION, (numbers(2, 3, 8), numbers(2, 3, 8), numbers(1, 2, 3, 8))),  # of fewer dimensions
    ],
)
def test_what_mixes_rows_or_shares_them_stays_whole(op, args):
    assert sliced_arguments(call(op, *args)) == ()


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "bounds"),
    [
        (4, 8, torch.float32, [(0, 4)]),
        (0, 8, torch.float32, []),
        (4, 0, torch.float32, [(0, 4)]),
        (3, 1 << 18, torch.float32, [(0, 1), (1, 2), (2, 3)]),  # a row is as much as a call may allocate
        (3, 1 << 19, torch.float32, [(0, 1), (1, 2), (2, 3)]),  # more: a row at least
        (5, 1 << 17, torch.float32, [(0, 2), (2, 4), (4, 5)]),
        (5, 1 << 17, torch.float16, [(0, 4), (4, 5)]),
        (5, 1 << 17, torch.float64, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
    ],
)
def test_a_slice_has_as_many_rows_as_a_call_may_allocate(rows, width, dtype, bounds):
    build = GraphBuilder()
    x = build.placeholder("x", (rows, width), (max(width, 1), 1), dtype)
    assert slice_bounds(build.call(aten.exp.default, x)) == bounds


def test_slices_cover_all_rows_once():
    for rows in (1, 7, 64, 1000):
        build = GraphBuilder()
        node = build.call(aten.exp.default, build.placeholder("x", (rows, 3000), (3000, 1), torch.float32))
        bounds = slice_bounds(node)
        assert [row for start, stop in bounds for row in range(start, stop)] == list(range(rows))
        assert all((stop - start) * 3000 * 4 <= LIMIT for start, stop in bounds)
