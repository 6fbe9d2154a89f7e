"""Products of few rows as steps: with weights of int8, and with weights in oneDNN's blocks."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import BF16, F16, F32, make, needs_kernels, numbers, run, same

from aotair_runtime.devices import onednn_product
from aotair_runtime.devices.onednn_library import Blocks
from aotair_runtime.devices.onednn_product import LibraryWeight
from aotair_runtime.steps import library, products, table
from aotair_runtime.steps.written import Steps

pytestmark = [needs_kernels, pytest.mark.usefixtures("whatever_pays")]

aten, air = torch.ops.aten, torch.ops.air
FLOATS = st.sampled_from([F32, BF16, F16])


@given(st.integers(1, 16), st.integers(1, 70), st.integers(1, 140) | st.just(1536), FLOATS, st.integers(0, 50))
@settings(max_examples=120, deadline=None)
def test_products_of_few_rows_with_a_weight_of_int8(rows, n, width, kind, seed):
    x = numbers((rows, width), kind, seed, special=False)
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randint(-128, 128, (n, width), generator=draw).to(torch.int8)
    scale = (torch.rand(n, generator=draw) / 127).to(kind)
    out = torch.zeros(rows, n, dtype=kind)
    run(air.linear_int8.out, x, weight, scale, out=out)
    want = (x.double() @ weight.double().t()) * scale.double()
    parts = (x.double().abs() @ weight.double().abs().t()) * scale.double()
    assert ((out.double() - want).abs() <= torch.finfo(kind).eps * want.abs() + 1e-6 * parts + 1e-7).all()
    many = torch.zeros(17, width, dtype=kind)
    assert table.steps(air.linear_int8.out, (many, weight, scale), {"out": torch.zeros(17, n, dtype=kind)}) is None
    wrong = {"out": torch.zeros(rows, n + 1, dtype=kind)}
    assert table.steps(air.linear_int8.out, (x, weight, scale), wrong) is None


def test_products_with_int8_are_torchs_where_registers_are_narrow(monkeypatch):
    monkeypatch.setattr(library, "is_wide", lambda: False)
    given = torch.ones(1, 32), torch.ones(4, 32, dtype=torch.int8), torch.ones(4)
    assert table.steps(air.linear_int8.out, given, {"out": torch.zeros(1, 4)}) is None


# ---- products with weights in oneDNN's blocks ------------------------------------------------------------------------

BLOCKED = [kind for kind in (F32, BF16) if onednn_product.has_kernels(kind)]
needs_blocks = pytest.mark.skipif(not BLOCKED, reason="no library of oneDNN with fast kernels for this processor")


def blocked(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Steps | None:
    """The product as steps, which keep the weight and the result."""
    packed = LibraryWeight(weight)
    out = torch.full((len(x), len(weight)), 7.0, dtype=x.dtype)
    op, args = (aten.mm.out, (x, weight.t())) if bias is None else (aten.addmm.out, (bias, x, weight.t()))
    made = products.linear_blocks(packed, op, args, {"out": out}, None)
    return None if made is None else dataclasses.replace(made, kept=(packed._packed, out))


def multiplied(made: Steps | None) -> torch.Tensor:
    make(made)
    return made.kept[1]


@needs_blocks
@given(
    st.integers(1, 8), st.integers(1, 200) | st.just(1000), st.integers(1, 150) | st.sampled_from([576, 1537]),
    st.booleans(), st.sampled_from(BLOCKED or [F32]), st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_products_of_few_rows_with_a_weight_in_blocks(rows, n, width, has_bias, kind, seed):
    x, weight = numbers((rows, width), kind, seed, special=False), numbers((n, width), kind, seed + 1, special=False)
    bias = numbers((n,), kind, seed + 2, special=False) if has_bias else None
    taken = onednn_product.takes((n, width), kind)
    made = blocked(x, weight, bias) if taken else None
    assert (made is None) is (not taken or rows > (8 if kind == F32 else 4) or (kind == BF16 and width % 2 == 1))
    if made is None:
        return
    added = 0.0 if bias is None else bias.double()
    want, parts = x.double() @ weight.double().t() + added, x.double().abs() @ weight.double().abs().t()
    got = multiplied(made).double()
    assert ((got - want).abs() <= torch.finfo(kind).eps * want.abs() + 2e-6 * parts + 1e-7).all()


@needs_blocks
@pytest.mark.parametrize("kind", BLOCKED)
@pytest.mark.parametrize("place", [0, 63, 64, 191])
def test_what_is_no_number_spoils_its_own_row_and_column(place: int, kind: torch.dtype):
    x, weight = torch.randn(3, 192).to(kind), torch.randn(192, 192).to(kind)
    x[1, place], weight[place, 191 - place] = math.nan, math.inf
    got = multiplied(blocked(x, weight))
    same(got, (x.double() @ weight.double().t()).to(kind), 1e-2 if kind == BF16 else 1e-4)
    assert got[1].isnan().all() and got[0].isfinite().sum() == 191


@needs_blocks
@pytest.mark.parametrize("kind", BLOCKED)
def test_a_row_has_the_same_bits_whatever_rows_and_threads_there_are(kind: torch.dtype):
    before, x, weight = torch.get_num_threads(), torch.randn(4, 576).to(kind), torch.randn(200, 576).to(kind)
    whole = multiplied(blocked(x, weight))
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for row in range(4):
                assert torch.equal(multiplied(blocked(x[row : row + 1], weight))[0], whole[row])
            assert torch.equal(multiplied(blocked(x[:3], weight)), whole[:3])
    finally:
        torch.set_num_threads(before)


@needs_blocks
def test_products_with_blocks_that_are_not_taken(monkeypatch):
    packed, x, weight = LibraryWeight(torch.randn(64, 128)), torch.randn(2, 128), torch.randn(64, 128)
    given, out = (aten.mm.out, (x, weight.t())), torch.empty(2, 64)
    linear = (aten.linear.default, (x, weight), {})
    assert products.linear_blocks(packed, *linear, [out]) is not None
    assert products.linear_blocks(packed, *linear, [None]) is None, "nobody has the result"
    assert products.linear_blocks(packed, *linear, [out, out]) is None
    assert products.linear_blocks(packed, *linear, [torch.empty(3, 64)]) is None
    assert products.linear_blocks(packed, *given, {"out": x[:, :64]}, None) is None, "written over what is read"
    wide = torch.randn(8, 20000)
    assert blocked(wide, torch.randn(64, 20000)) is None, "more numbers than a thread holds"
    monkeypatch.setattr(packed, "block_bytes", 0)
    assert products.linear_blocks(packed, *given, {"out": out}, None) is None, "it lies otherwise"
    monkeypatch.undo()
    monkeypatch.setattr(library, "is_wide", lambda: False)
    assert products.linear_blocks(packed, *given, {"out": out}, None) is None


@pytest.mark.parametrize(
    ("blocks", "width", "kind", "nbytes"),
    [
        (Blocks((1024, 9216), (16, 64), (0, 1)), 140, F32, 144 * 64 * 4),
        (Blocks((2048, 10240), (16, 64, 2), (0, 1, 0)), 140, BF16, 160 * 64 * 2),
        (Blocks((1024, 9216), (16, 64), (0, 1)), 150, F32, 0),  # more than a block holds
        (Blocks((1024, 8192), (16, 64), (0, 1)), 140, F32, 0),  # with something between
        (Blocks((1024, 9216), (16, 64), (1, 0)), 140, F32, 0),  # the other way
        (Blocks((768, 9216), (16, 48), (0, 1)), 140, F32, 0),  # narrower
        (Blocks((2048, 10240), (16, 64, 2), (0, 1, 0)), 140, F32, 0),  # in pairs
        (Blocks((1024, 9216), (16, 64), (0, 1)), 140, BF16, 0),  # not in pairs
        (Blocks((4096, 10240), (16, 64, 4), (0, 1, 0)), 140, BF16, 0),  # in fours
        (Blocks((1, 140), (), ()), 140, F32, 0),  # in rows
    ],
)
def test_which_blocks_are_read(blocks: Blocks, width: int, kind: torch.dtype, nbytes: int):
    assert onednn_product._block_bytes(blocks, width, kind) == nbytes
