"""`weight_nz`: products whose kernel takes a weight in NZ read it so, and each of the others says why it does not."""

from pathlib import Path

import pytest
import torch
from graphs import reasons, run_pass, trace

from aotair.builder import explain
from aotair.graph.derived import mark_constant
from aotair.graph.packed import packed_places
from aotair.ops import npu as npu_ops  # noqa: F401  # defines the ops that graphs of this file call
from aotair.passes import weight_nz
from aotair.passes.edits import Edits
from aotair.target.target import Target

aten, npu = torch.ops.aten, torch.ops.npu
HALF, INT8 = torch.float16, torch.int8


def graph(function, *shapes: tuple[torch.dtype, tuple[int, ...]]):
    """The graph of a function, the first of whose arguments is an input and whose others are constants."""
    module = trace(function, *(torch.ones(shape, dtype=dtype) for dtype, shape in shapes))
    for node in list(module.graph.find_nodes(op="placeholder"))[1:]:
        mark_constant(node)
    return module


def marked(module) -> list[int]:
    return [place for node in module.graph.nodes for place in packed_places(node)]


def _quant(x, w, scale):
    return (npu.npu_quant_matmul(x, w, scale, output_dtype=5),)


def _grouped(x, *weights, **options):
    ends = torch.tensor([2, 4])
    return (npu.npu_grouped_matmul([x], list(weights), group_list=ends, split_item=2, group_type=0, **options)[0],)


def _grouped_with_bias(x, w, bias):
    return _grouped(x, w, bias=[bias])


def _grouped_int8(x, w):
    return _grouped(x, w, output_dtype=3)


def _grouped_by_int8(x, w, scale):
    return _grouped(x, w, antiquant_scale=[scale], antiquant_offset=[scale])


def _grouped_of_int8(x, w, scale):
    return _grouped(x, w, scale=[scale], output_dtype=5)


def _weight_quant(x, w, scale):
    return (npu.npu_weight_quant_batchmatmul(x, w, scale),)


def _prolog(x, down, up, key, latents, one, two):
    made, angle = npu.npu_mla_prolog_v3, torch.ones(4, 32, dtype=x.dtype)
    caches = (torch.zeros(2, 16, 1, size, dtype=x.dtype) for size in (48, 32))
    return made(x, down, up, key, latents, one, two, angle, angle, *caches, cache_index=torch.arange(4))[:2]


PROLOG = [(4, 64), (64, 32), (32, 96), (2, 16, 48), (64, 80), (32,), (48,)]
X = (HALF, (4, 64))
X8, SCALE = (INT8, (4, 64)), (torch.float32, (48,))


@pytest.mark.parametrize(
    ("function", "shapes", "place"),
    [
        (lambda x, w: (aten.mm(x, w),), [X, (HALF, (64, 48))], 1),
        (lambda x, w: (aten.mm(x, w.t()),), [X, (HALF, (50, 64))], 1),  # no block divides 50
        (lambda x, w: (aten.mm(x, w.transpose(0, 1)),), [(torch.bfloat16, (4, 64)), (torch.bfloat16, (48, 64))], 1),
        (lambda x, w, b: (aten.addmm(b, x, w.t()),), [X, (HALF, (48, 64)), (HALF, (48,))], 2),
        (_quant, [X8, (INT8, (64, 48)), SCALE], 1),
        (_grouped, [X, (HALF, (2, 64, 48))], 1),
        (_grouped_with_bias, [X, (HALF, (2, 64, 48)), (HALF, (2, 48))], 1),
        (_grouped_of_int8, [X8, (INT8, (2, 64, 64)), (torch.float32, (2, 64))], 1),
    ],
)
def test_products_whose_kernel_takes_nz_are_marked(function, shapes, place):
    module = graph(function, *shapes)
    edits = run_pass(weight_nz, module, target="npu")
    assert marked(module) == [place] and edits.count == 1
    assert not marked(graph(function, *shapes)), "by nothing else"


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (lambda x, w: (aten.mm(x, w),), [(torch.float32, (4, 64)), (torch.float32, (64, 48))], "no weight of float32"),
        (lambda x, w: (aten.mm(x, w[:64]),), [X, (HALF, (65, 48))], "a part of a constant"),
        (lambda x, w: (aten.mm(x, w[1:]),), [X, (HALF, (65, 48))], "a part of a constant"),
        (lambda x, w: (aten.mm(x, w.view(64, 48)),), [X, (HALF, (48, 64))], "in another shape"),
        (lambda x, w: (aten.mm(x, w),), [X, (HALF, (64, 1))], "one row or column"),
        (lambda x, w: (aten.mm(x[:, :1], w),), [X, (HALF, (1, 48))], "one row or column"),
        (lambda x, w, s: _quant(x, w.t(), s), [X8, (INT8, (48, 64)), SCALE], "no transposed weight"),
        (_quant, [X8, (INT8, (64, 65536)), (torch.float32, (65536,))], "at most 65535 columns"),
        (_grouped, [X, (HALF, (64, 48)), (HALF, (64, 48))], "a list of several weights"),
        (_grouped, [X, (HALF, (2, 64, 40))], "rows and columns that 16 and 16 divide"),
        (lambda x, w: _grouped(x, w.mT), [X, (HALF, (2, 48, 64))], "no transposed weight"),
        (_grouped_int8, [X8, (INT8, (2, 64, 48))], "results of float16 or bfloat16"),
        (_grouped_with_bias, [X, (HALF, (2, 64, 48)), (torch.float32, (2, 48))], "a bias of float16"),
        (_grouped_by_int8, [X, (INT8, (2, 64, 64)), (HALF, (2, 64))], "no antiquant_scale beside a weight of int8"),
        (_weight_quant, [X, (INT8, (64, 48)), (HALF, (48,))], "Ascend 950 alone"),
        (lambda x, w: (aten.bmm(x.unsqueeze(0), w),), [X, (HALF, (1, 64, 48))], "no batch of matrices"),
    ],
)
def test_products_that_stay(function, shapes, reason, caplog):
    module = graph(function, *shapes)
    with caplog.at_level("DEBUG", logger="aotair"):
        run_pass(weight_nz, module, target="npu")
    assert reason in caplog.text and not marked(module)


@pytest.mark.parametrize("stored", range(3))
def test_all_weights_of_an_op_are_marked_or_none(stored: int, caplog):
    module = trace(_prolog, *(torch.ones(shape, dtype=torch.bfloat16) for shape in PROLOG))
    inputs = list(module.graph.find_nodes(op="placeholder"))
    for place in (1, 2, 4)[: stored + 1]:
        mark_constant(inputs[place])
    with caplog.at_level("DEBUG", logger="aotair"):
        run_pass(weight_nz, module, target="npu")
    assert marked(module) == ([1, 2, 4] if stored == 2 else [])
    assert stored == 2 or "takes all its weights in NZ" in caplog.text


def test_products_of_what_calls_bring_are_no_candidates():
    module = trace(lambda x, y: (aten.mm(x, y),), torch.ones(4, 64, dtype=HALF), torch.ones(64, 48, dtype=HALF))
    edits = run_pass(weight_nz, module, target="npu")
    assert not marked(module) and not edits.accounts


def test_a_limit_leaves_the_rest():
    module = graph(lambda x, w: (aten.mm(aten.mm(x, w), w),), X, (HALF, (64, 64)))
    run_pass(weight_nz, module, limit=1, target="npu")
    assert len(marked(module)) == 1


@pytest.mark.parametrize(("target", "why"), [(Target("cpu"), "no NPU"), (Target("npu", packs=False), "pack_weights")])
def test_other_targets_are_left_alone(target, why, caplog):
    module = graph(lambda x, w: (aten.mm(x, w),), X, (HALF, (64, 48)))
    with caplog.at_level("INFO", logger="aotair"):
        weight_nz.run(module, Edits("weight_nz", target))
    assert not marked(module) and why in caplog.text
    assert not reasons(caplog, weight_nz, module).count("stays")


def test_explain_says_what_is_read_so_and_why_the_rest_is_not(tmp_path: Path):
    (tmp_path / "m.py").write_text(
        "import torch\nHALF = torch.float16\n\n\nclass Two(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.one = torch.nn.Linear(64, 48, dtype=HALF)\n"
        "        self.two = torch.nn.Linear(64, 1, dtype=HALF)\n"
        "        self.three = torch.nn.Linear(4, 48, dtype=HALF)\n\n    def forward(self, x):\n"
        "        return self.one(x), self.two(x), self.three(x.t())\n"
    )
    recipe = {
        "name": "two",
        "model": {"factory": f"{tmp_path / 'm.py'}:Two"},
        "target": {"device": "npu"},
        "inputs": {"x": {"shape": [4, 64], "dtype": "float16"}},
        "config": {"experimental_config": {"weight_nz": True}},
    }
    text = explain(recipe).text("weight_nz")
    assert "1 done, 2 left alone" in text and "one row or column" in text and "its input has gaps" in text
