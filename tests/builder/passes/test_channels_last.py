"""Convolutions read and write channels-last, and what lies between them too: fires, declines, same numbers."""

import pytest
import torch
from folding import r, traced
from graphs import run_pass
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import aotair
from aotair.graph.show import show
from aotair.passes import channels_last
from aotair_runtime.confine.op_table import demands

aten, DENSE = torch.ops.aten, torch.channels_last
IMAGE, ROW = r(2, 4, 9, 8), r(2, 4, 9)
WEIGHTS = {"v": r(6, 4, 3, 3), "w": r(6, 6, 3, 3)}


def laid(function, x, constants, count: int | None = None, **options) -> torch.fx.GraphModule:
    """The graph after the pass, which made that many rewrites, with the same numbers and contiguous results where they
    were."""
    module = traced(function, x, constants, **options)
    want, plain = module(x.clone(), *constants.values()), [one.is_contiguous() for one in results(module)]
    edits = run_pass(channels_last, module)
    found = torch.fx.Interpreter(module).run(x.clone(), *constants.values())
    for got, wanted in zip(found, want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * max(1.0, float(wanted.abs().max())))
    assert all(now.is_contiguous() or not before for now, before in zip(results(module), plain, strict=True))
    assert count is None or edits.count == count, show(module)
    return module


def results(module: torch.fx.GraphModule) -> list[torch.Tensor]:
    (output,) = module.graph.find_nodes(op="output")
    return [node.meta["val"] for node in output.args[0]]


def copies(module: torch.fx.GraphModule) -> int:
    return len(list(module.graph.find_nodes(op="call_function", target=aten.clone.default)))


def dense(module: torch.fx.GraphModule) -> list[bool]:
    """Whether each convolution reads and writes channels-last."""
    found = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    pairs = [(node.args[0].meta["val"], node.meta["val"]) for node in found]
    return [all(one.is_contiguous(memory_format=DENSE) for one in pair) for pair in pairs]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_an_image_is_copied_once_and_once_more_where_it_is_returned(symbolic):
    def function(x, v, w):
        first = F.conv2d(x, v, padding=1).relu()
        return (F.max_pool2d(F.conv2d(first, w, padding=1) + first, 2),)

    module = laid(function, IMAGE, WEIGHTS, 2, symbolic=symbolic)
    assert dense(module) == [True, True] and copies(module) == 2


KEEP = {
    "relu": lambda y, w: y.relu(),
    "gelu": lambda y, w: F.gelu(y),
    "sum with a number for each channel": lambda y, w: y + w[:, 0, 0, 0].view(1, 6, 1, 1),
    "batch norm": lambda y, w: F.batch_norm(y, w[:, 0, 0, 0], w[0, :, 0, 0].abs()),
    "group norm": lambda y, w: F.group_norm(y, 3),
    "pools": lambda y, w: F.avg_pool2d(F.max_pool2d(y, 3, 1, 1), 3, 1, 1),
    "adaptive pool": lambda y, w: F.adaptive_avg_pool2d(y, 4),
    "nearest": lambda y, w: F.interpolate(y, scale_factor=2.0),
    "bilinear": lambda y, w: F.interpolate(y, scale_factor=2.0, mode="bilinear"),
    "joined": lambda y, w: torch.cat([y, y * 2], 1)[:, :6],
    "padded": lambda y, w: F.pad(y, (1, 1, 1, 1)),
    "mean": lambda y, w: y * y.mean((2, 3), keepdim=True),
}


@pytest.mark.parametrize("kind", KEEP)
def test_what_maps_images_keeps_the_layout(kind):
    def function(x, v, w):
        return (F.conv2d(KEEP[kind](F.conv2d(x, v, padding=1), w), w, padding=1).mean((2, 3)),)

    module = laid(function, IMAGE, WEIGHTS, 2)
    assert dense(module) == [True, True]
    assert copies(module) <= 2, show(module)


def test_views_that_the_layout_does_not_allow_look_at_a_copy():
    def function(x, v, w):
        first = F.conv2d(x, v, padding=1)
        rows = first.view(2, 6 * 9, 8).softmax(-1).view(2, 6, 9, 8)
        return F.conv2d(rows, w, padding=1).view(2, -1), first.flatten(2).transpose(1, 2)

    assert dense(laid(function, IMAGE, WEIGHTS, 2)) == [True, True]


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2)])
def test_sequences_are_images_of_one_row(stride, padding, dilation, groups):
    constants = {"w": r(6, 4 // groups, 3), "b": r(6)}

    def function(x, w, b):
        return (F.conv1d(x, w, b, stride, padding, dilation, groups).transpose(1, 2) * 2,)

    module = laid(function, ROW, constants, 1)
    assert dense(module) == [True]
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert product.meta["val"].is_contiguous()  # without a copy: each number of a channel beside the next channel's


LEFT = {
    "it is transposed": (lambda x, w: (F.conv_transpose2d(x, w),), IMAGE, {"w": r(4, 6, 3, 3)}),
    "it is no convolution of images": (lambda x, w: (F.conv3d(x, w),), r(1, 4, 5, 5, 5), {"w": r(6, 4, 3, 3, 3)}),
    "each group reads a single channel": (lambda x, w: (F.conv2d(x, w, groups=4),), IMAGE, {"w": r(8, 1, 3, 3)}),
    "its weight is no constant": (lambda x, w: (F.conv2d(w, x.view(2, 4, 9, 8)),), IMAGE, {"w": r(1, 4, 9, 9)}),
}


@pytest.mark.parametrize("why", LEFT)
def test_other_convolutions_stay_as_they_are(why):
    function, x, constants = LEFT[why]
    module = traced(function, x, constants)
    before = show(module)
    (account,) = run_pass(channels_last, module).accounts
    assert account.text.startswith(why) and not account.rewritten and show(module) == before


@pytest.mark.parametrize("target", ["npu", "cuda"])
def test_devices_that_pack_no_convolutions_keep_their_layout(target):
    module = traced(lambda x, v, w: (F.conv2d(x, v),), IMAGE, WEIGHTS)
    before = show(module)
    assert run_pass(channels_last, module, target=target).count == 0 and show(module) == before


def test_so_does_what_is_neither_float32_nor_bfloat16_and_what_may_not_be_rewritten():
    double = {name: one.double() for name, one in WEIGHTS.items()}
    module = traced(lambda x, v, w: (F.conv2d(x, v),), IMAGE.double(), double)
    assert run_pass(channels_last, module).count == 0
    module = traced(lambda x, v, w: (F.conv2d(F.conv2d(x, v), w),), IMAGE, WEIGHTS)
    assert run_pass(channels_last, module, limit=1).count == 1
    assert dense(module)[0]


STEPS = {**KEEP, "softmax": lambda y, w: y.softmax(1), "flip": lambda y, w: y.flip(2), "turn": lambda y, w: y.mT,
         "rows": lambda y, w: y.reshape(len(y), -1).flip(1).reshape(y.shape),
         "another": lambda y, w: F.conv2d(y, w, padding=1)}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=5), st.booleans())
def test_chains_of_steps_keep_their_numbers(chain, symbolic):
    def function(x, v, w):
        y = F.conv2d(x, v, padding=1)
        for step in chain:
            y = STEPS[step](y, w) / 2
        return y, y[0]

    laid(function, IMAGE, WEIGHTS, symbolic=symbolic)


SEEN = {
    "flat, of one row": (r(2, 4, 1, 7), lambda y: y.flatten(1)),
    "whole, of one row": (r(1, 4, 1, 7), lambda y: y.view(-1)),
    "heads": (r(2, 4, 5, 7), lambda y: y.view(2, 2, 3, 35).transpose(2, 3)),
    "complex": (r(2, 4, 5, 8), lambda y: torch.view_as_real(torch.view_as_complex(y.view(2, 6, 5, 4, 2)) * 2)),
    "other numbers": (r(2, 4, 5, 8), lambda y: y.view(torch.int32) * 1.0),
}


@pytest.mark.parametrize("kind", SEEN)
def test_views_see_what_they_saw(kind):
    x, see = SEEN[kind]
    laid(lambda x, v: (see(F.conv2d(x, v)),), x, {"v": r(6, 4, 1, 1)}, 1)


def test_graphs_that_see_tensors_by_their_strides_keep_the_layout():
    module = traced(lambda x, v: (F.conv2d(x, v).as_strided((2, 3), (5, 1)),), IMAGE, {"v": WEIGHTS["v"]})
    assert run_pass(channels_last, module).count == 0


ROWS_ALONE = {
    "norm of the batch's own": lambda y: F.batch_norm(y, None, None, training=True),
    "matrix exponential": lambda y: torch.linalg.matrix_exp(y[..., :7] / 8),
    "triangle": lambda y: y.tril(),
    "cross product": lambda y: torch.linalg.cross(y[:, :3], y[:, 3:], dim=1),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("kind", ROWS_ALONE)
def test_what_has_to_lie_row_by_row_reads_a_copy(kind, symbolic):
    x = r(2, 4, 7, 9)
    module = laid(
        lambda x, v: (ROWS_ALONE[kind](F.conv2d(x, v, padding=1)) * 2,), x, {"v": WEIGHTS["v"]}, 1, symbolic=symbolic
    )
    (found,) = [node for node in module.graph.nodes if node.op == "call_function" and "dense" in _demanded(node)]
    value = found.meta["val"]
    assert (value[0] if isinstance(value, tuple) else value).is_contiguous()


def _demanded(node: torch.fx.Node) -> tuple[str, ...]:
    return demands(node.target.name()).tensors if isinstance(node.target, torch._ops.OpOverload) else ()


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)

        self.norm = torch.nn.BatchNorm2d(8, track_running_stats=False)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu())


@pytest.mark.parametrize("on", [True, False])
def test_a_recipe_may_leave_it_out(on, tmp_path):
    x, made = {"shape": [1, 3, 12, 12], "dtype": "float32"}, Small()
    config = aotair.CompilerConfig()
    config.experimental_config.channels_last = on
    path = aotair.build(model=made, name="small", out=tmp_path / "small.aotair", inputs={"x": x}, config=config)
    given = torch.randn(1, 3, 12, 12)
    with aotair.load(path) as model, torch.no_grad():
        torch.testing.assert_close(model(given), made(given), atol=1e-5, rtol=1e-5)
        assert bool(model._resident.packed) == on
