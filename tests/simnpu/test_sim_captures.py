"""Is what the builder says of an op true: what it takes whole is captured, and what it refuses cannot be?"""

import models
import pytest
import simnpu
import torch
import torch.nn.functional as F
from cases import MODELS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import aotair
from aotair.errors import UnsupportedError
from aotair.lower.graph_builder import GraphBuilder
from aotair.lower.specialise import _expanded, _takes
from aotair.target.target import Target
from aotair_runtime.confine.op_table import Allowed

NPU = Target("npu", allowed=Allowed(namespaces=("aten",)))  # whatever a load allows: what a capture can record
X, I = torch.rand(2, 4, 4, 4) + 0.1, torch.arange(24).view(2, 3, 4) % 5 + 1  # noqa: E741

UNARY = (
    "abs acos angle atan ceil cos cosh digamma erf erfc erfinv exp expm1 floor frac lgamma log log1p neg "
    "reciprocal round rsqrt sigmoid sign signbit sin sinh sqrt square tan tanh trunc isposinf logit i0 sinc positive "
    "argmax argmin nansum flatten clone zeros_like ones_like empty_like"
)
ALONG = (
    "cumsum cumprod logcumsumexp logsumexp softmax log_softmax amax amin prod std var median mode diag_embed all any"
)
BINARY = (
    "add sub mul div atan2 maximum minimum fmod remainder pow hypot heaviside copysign logaddexp logaddexp2 nextafter "
    "floor_divide eq ne lt le gt ge xlogy dist isclose"
)
ACTIVATIONS = (
    "relu gelu silu mish elu selu celu hardswish hardsigmoid softplus softsign leaky_relu instance_norm hardtanh "
    "relu6 logsigmoid"
)
BITWISE = "and or xor left_shift right_shift"
OTHERS = {
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, x[0, 0, :2, :2], (2, 2), (2, 1)),
    "select_scatter": lambda x: torch.select_scatter(x, x[0], 0, 1),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "unfold": lambda x: F.unfold(x, 2),
    "searchsorted": lambda x: torch.searchsorted(x, x + 1),
    "linspace": lambda x: torch.linspace(x[0, 0, 0, 0], x[1, 1, 1, 1], 4),
    "kthvalue": lambda x: x.kthvalue(2),
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "gather": lambda x: x.gather(3, torch.zeros(2, 4, 4, 1, dtype=torch.int64)),
    "scatter": lambda x: x.scatter(3, torch.zeros(2, 4, 4, 1, dtype=torch.int64), x),
    "where": lambda x: torch.where(x > 0.5, x, 0.0),
    "index": lambda x: x[torch.tensor([1, 0])],
    "huber": lambda x: F.huber_loss(x, x + 1),
    "cdist": lambda x: torch.cdist(x, x),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "lerp": lambda x: torch.lerp(x, x + 1, 0.5),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, x[0, :, 0, 0], x[1, :, 0, 0]),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "item": lambda x: x.sum().item(),
    "equal": lambda x: torch.equal(x, x),
}


def everything(x: torch.Tensor) -> None:
    """Call all of them."""
    for name in UNARY.split():
        getattr(torch, name)(x)
    for name in ALONG.split():
        getattr(torch, name)(x, -1)
    for name in BINARY.split():
        getattr(torch, name)(x, x + 1)
    for name in ACTIVATIONS.split():
        getattr(F, name)(x)
    for name in BITWISE.split():
        getattr(torch, f"bitwise_{name}")(I, I + 1)
    for function in OTHERS.values():
        function(x)


class _Calls(TorchDispatchMode):
    """The ops that are called, each with its first arguments."""

    def __init__(self):
        super().__init__()
        self.found: dict = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func not in self.found and tensors and not func._schema.is_mutable:
            copies = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (args, kwargs))
            self.found[func] = copies
        return func(*args, **kwargs)


def calls() -> dict:
    with torch.no_grad(), _Calls() as mode:
        everything(X.clone())
    return mode.found


def says(func, args, kwargs) -> str:
    """What a build would do: take the op whole, take it apart, or refuse it."""
    build = GraphBuilder()

    def node(value):
        if not isinstance(value, torch.Tensor):
            return value
        made = build.graph.create_node("placeholder", f"p{len(build.graph.nodes)}")
        made.meta["val"] = build.mode.from_tensor(value)
        return made

    given = tree_map(node, (args, kwargs))
    if _takes(build, func, given, NPU):
        return "whole"
    try:
        _expanded(build, build.graph.create_node("call_function", func, *given), given, "test", NPU)
    except UnsupportedError:
        return "refused"
    return "apart"


def captured(func, args, kwargs, capture) -> str:
    """Nothing, or why a capture of the op fails or answers otherwise than the CPU."""
    want = func(*args, **kwargs)
    args, kwargs = tree_map(lambda v: v.npu() if isinstance(v, torch.Tensor) else v, (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = torch.device("npu", 0)
    try:
        with torch.no_grad():
            graph, got = capture(lambda: func(*args, **kwargs))
        graph.replay()
        torch.npu.synchronize()
        if "empty" not in str(func):
            for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
                torch.testing.assert_close(one.cpu(), other, equal_nan=True)
    except Exception as error:
        simnpu.abandon()
        return f"{error or type(error)} {simnpu.take_failure() or ''}"
    return ""


def test_what_is_taken_whole_is_captured_and_what_is_refused_cannot_be(capture):
    wrong, counts = [], {"whole": 0, "apart": 0, "refused": 0}
    for func, (args, kwargs) in calls().items():
        said, failed = says(func, args, kwargs), captured(func, args, kwargs, capture)
        counts[said] += 1
        if (said == "whole" and failed) or (said == "refused" and not failed):
            wrong.append(f"{func}: {said}, {failed[:200] or 'captured'}")
    assert not wrong, "\n".join(wrong)
    assert counts["whole"] > 80 and counts["apart"] > 3 and counts["refused"] > 2, counts


@pytest.mark.parametrize("name", models.APART)
def test_what_is_taken_apart_is_right_on_the_device(name, tmp_path):
    recipe = {
        "name": "apart",
        "model": {"factory": f"{MODELS}:Apart", "kwargs": {"name": name}},
        "inputs": {"x": {"shape": ["n", 4, 4, 4], "dtype": "float32"}},
        "buckets": {"n": [1, 2]},
        "target": {"device": "npu"},
    }
    with aotair.load(aotair.build(recipe, tmp_path / "x.aotair"), device="npu") as model:
        for n in (1, 2):
            x = torch.randn(n, 4, 4, 4)
            torch.testing.assert_close(model(x.npu()).cpu(), models.APART[name](x))
