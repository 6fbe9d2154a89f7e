"""Batch norms and scales become part of the weights before them, where nobody could tell the difference."""

import pytest
import torch
from cases import recipe
from folding import batch_norm, folded, names, r, statistics, traced, why
from graphs import run_pass
from models import Normed
from safetensors.torch import save_file
from torch.nn import functional as F

import aotair
from aotair.builder import explain
from aotair.passes import fold_norms
from aotair_runtime.artifact.open import read_program

aten, air = torch.ops.aten, torch.ops.air
NORM, CONVOLUTION, LINEAR = "_native_batch_norm_legit_no_training", "convolution", "linear"


# ---- it fires --------------------------------------------------------------------------------------------------------

IMAGE = r(2, 4, 9, 9)
LAYERS = {
    "1d": (r(2, 4, 9), r(6, 4, 3), lambda x, w, b: F.conv1d(x, w, b)),
    "2d": (IMAGE, r(6, 4, 3, 3), lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, dilation=2)),
    "3d": (r(2, 4, 5, 5, 5), r(6, 4, 3, 3, 3), lambda x, w, b: F.conv3d(x, w, b)),
    "groups": (IMAGE, r(6, 2, 3, 3), lambda x, w, b: F.conv2d(x, w, b, groups=2)),
    "depthwise": (r(2, 6, 9, 9), r(6, 1, 3, 3), lambda x, w, b: F.conv2d(x, w, b, groups=6)),
    "transposed 1d": (r(2, 4, 9), r(4, 6, 3), lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2)),
    "transposed": (IMAGE, r(4, 6, 3, 3), lambda x, w, b: F.conv_transpose2d(x, w, b)),
    "transposed, groups": (IMAGE, r(4, 3, 3, 3), lambda x, w, b: F.conv_transpose2d(x, w, b, groups=2)),
    "linear": (r(5, 4), r(6, 4), lambda x, w, b: aten.linear.default(x, w, b)),
    "channels last": (IMAGE, r(6, 4, 3, 3).to(memory_format=torch.channels_last), lambda x, w, b: F.conv2d(x, w, b)),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_norm_becomes_part_of_the_layer_before_it(kind, bias, symbolic):
    x, weight, layer = LAYERS[kind]
    constants = {"w": weight} | ({"b": r(6, seed=5)} if bias else {}) | statistics(6)

    def function(x, w, b=None, **norm):
        return (batch_norm(layer(x, w, b), **norm),)

    assert NORM not in names(folded(function, x, constants, 1, symbolic=symbolic))


@pytest.mark.parametrize("missing", [{"gamma"}, {"beta"}, {"gamma", "beta"}])
def test_a_norm_may_have_no_weights_of_its_own(missing):
    constants = {"w": r(6, 4, 3, 3)} | {name: one for name, one in statistics(6).items() if name not in missing}
    folded(lambda x, w, **norm: (batch_norm(F.conv2d(x, w), **norm).relu(),), IMAGE, constants, 1)


@pytest.mark.parametrize(
    "norm",
    [
        lambda y, g, b, m, v: aten.batch_norm.default(y, g, b, m, v, False, 0.1, 1e-5, False),
        lambda y, g, b, m, v: aten.native_batch_norm.default(y, g, b, m, v, False, 0.1, 1e-5)[0],
        lambda y, g, b, m, v: aten._batch_norm_no_update.default(y, g, b, m, v, 0.1, 1e-5)[0],
    ],
)
def test_every_op_that_is_a_norm_of_inference_is_known(norm):
    def function(x, w, gamma, beta, mean, var):
        return (norm(F.conv2d(x, w), gamma, beta, mean, var),)

    folded(function, IMAGE, {"w": r(6, 4, 3, 3)} | statistics(6), 1)


SCALES = {
    "mul": (lambda y, c: y * c, (6, 1, 1)),
    "mul, the constant first": (lambda y, c: c * y, (1, 6, 1, 1)),
    "div": (lambda y, c: y / c, (6, 1, 1)),
    "add": (lambda y, c: y + c, (1, 6, 1, 1)),
    "add, the constant first": (lambda y, c: c + y, (6, 1, 1)),
    "add a multiple": (lambda y, c: torch.add(y, c, alpha=3), (6, 1, 1)),
    "sub": (lambda y, c: y - c, (6, 1, 1)),
    "one value": (lambda y, c: y * c, (1, 1, 1)),
    "no dimension": (lambda y, c: y - c, ()),
    "number": (lambda y, c: y * 2.5, (1,)),
    "whole number": (lambda y, c: y + 3, (1,)),
    "quotient by a number": (lambda y, c: y / 3, (1,)),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("kind", SCALES)
def test_a_product_or_sum_becomes_part_of_a_convolution(kind, bias, symbolic):
    op, shape = SCALES[kind]
    constants = {"w": r(6, 4, 3, 3), "c": r(*shape)} | ({"b": r(6)} if bias else {})
    left = names(folded(lambda x, w, c, b=None: (op(F.conv2d(x, w, b), c),), IMAGE, constants, 1, symbolic=symbolic))
    assert left[-1] == CONVOLUTION


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("op", [torch.mul, torch.add])
def test_a_product_or_sum_becomes_part_of_a_linear_layer(op, dims):
    x, constants = r(*(2, 3, 4, 5)[4 - dims :]), {"w": r(6, 5), "c": r(6)}
    assert names(folded(lambda x, w, c: (op(aten.linear.default(x, w), c),), x, constants, 1))[-1] == LINEAR


@pytest.mark.parametrize("groups", [1, 2])
def test_a_product_becomes_part_of_a_transposed_convolution(groups):
    constants = {"w": r(4, 6 // groups, 3, 3), "c": r(6, 1, 1), "b": r(6)}
    folded(lambda x, w, c, b: (F.conv_transpose2d(x, w, b, groups=groups) * c,), IMAGE, constants, 1)


def test_chains_become_part_of_one_layer():
    def function(x, w, c, **norm):
        return (((batch_norm(F.conv2d(x, w), **norm) * c.exp().reshape(1, 6, 1, 1) + 2) / 3 - c[:, None, None]).relu(),)

    left = names(folded(function, IMAGE, {"w": r(6, 4, 3, 3), "c": r(6)} | statistics(6), 5))
    assert left[-2:] == [CONVOLUTION, "relu"]


VIEWS = {
    "transpose": (lambda y, c: y.transpose(1, 2) * c[:, None], (6,)),
    "transpose from the end": (lambda y, c: y.transpose(-1, -2) * c[:, None], (6,)),
    "permute": (lambda y, c: y.permute(2, 0, 1) * c[:, None, None], (6,)),
    "heads, by a number": (lambda y, c: y.view(2, 3, 2, 3).transpose(1, 2) * 0.5, (1,)),
    "heads, by one value": (lambda y, c: y.view(2, 3, 2, 3).unsqueeze(0) + c, ()),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_scale_behind_views_becomes_part_of_a_linear_layer(kind):
    op, shape = VIEWS[kind]
    left = names(
        folded(lambda x, w, c: (op(aten.linear.default(x, w), c),), r(2, 3, 4), {"w": r(6, 4), "c": r(*shape)}, 1)
    )
    assert left[-1] != "mul" and left[-1] != "add"


def test_a_norm_behind_a_view_normalises_the_layers_channels():
    def function(x, w, **norm):
        return (batch_norm(aten.linear.default(x, w).transpose(1, 2), **norm),)

    folded(function, r(2, 3, 4), {"w": r(6, 4)} | statistics(6), 1)


NEXT = {
    "linear": (r(5, 4), r(6, 4), lambda y, w, b: aten.linear.default(y, w, b)),
    "pointwise": (IMAGE, r(6, 4, 1, 1), lambda y, w, b: F.conv2d(y, w, b)),
    "without padding": (IMAGE, r(6, 4, 3, 3), lambda y, w, b: F.conv2d(y, w, b, stride=2)),
    "1d": (r(2, 4, 9), r(6, 4, 3), lambda y, w, b: F.conv1d(y, w, b)),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("kind", NEXT)
def test_a_norm_becomes_part_of_the_layer_after_it(kind, bias, symbolic):
    x, weight, layer = NEXT[kind]
    constants = {"w": weight} | ({"b": r(6)} if bias else {}) | statistics(4)

    def function(x, w, b=None, **norm):
        return (layer(batch_norm(x, **norm), w, b),)

    assert NORM not in names(folded(function, x, constants, 1, symbolic=symbolic))


def test_a_layer_reads_before_a_write_what_the_norm_read_before_it():
    def function(x, w, **norm):
        seen = batch_norm(x, **norm)
        aten.mul_.Tensor(x, 2)
        return (aten.linear.default(seen, w.exp()),)

    x, constants = r(5, 4), {"w": r(6, 4)} | statistics(4)
    folded(function, x, constants, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", [lambda y, c: y * 2.5, lambda y, c: y * c[:1] + c, lambda y, c: c * y - 1])
def test_what_is_computed_of_an_embedding_is_computed_of_its_weights_to_the_bit(op, dtype):
    ids, constants = torch.tensor([[1, 3, 1], [0, 2, 4]]), {"w": r(7, 5).to(dtype), "c": r(5).to(dtype)}

    def function(ids, w, c):
        return (op(F.embedding(ids, w, 0), c),)

    module = traced(function, ids, constants)
    want = module(ids, *constants.values())
    assert run_pass(fold_norms, module).count > 0
    assert torch.equal(module(ids, *constants.values())[0], want[0]) and names(module)[-1] == "embedding"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_layer_without_a_bias_takes_a_sum(dtype):
    constants = {"w": r(6, 4).to(dtype), "c": r(6).to(dtype)}
    module = traced(lambda x, w, c: (aten.linear.default(x, w) + c,), r(5, 4).to(dtype), constants)
    assert run_pass(fold_norms, module).count == 1


@pytest.mark.parametrize("missing", [set(), {"gamma"}, {"beta"}])
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_a_norm_of_halves_after_a_convolution_that_a_cpu_packs_becomes_a_factor_and_a_term(missing, symbolic):
    given = {"w": r(6, 4, 3, 3)} | {name: one for name, one in statistics(6).items() if name not in missing}
    constants = {name: one.bfloat16() for name, one in given.items()}
    module = traced(
        lambda x, w, **norm: (batch_norm(F.conv2d(x, w), **norm).relu(),),
        IMAGE.bfloat16(),
        constants,
        symbolic=symbolic,
    )
    (want,) = module(IMAGE.bfloat16(), *constants.values())
    assert run_pass(fold_norms, module).count == 1
    (call,) = module.graph.find_nodes(op="call_function", target=air.channel_affine.default)
    assert [one.meta["val"].dtype for one in call.args[1:]] == [torch.float32] * 2 and NORM not in names(module)
    (got,) = module(IMAGE.bfloat16(), *constants.values())
    torch.testing.assert_close(got, want, rtol=torch.finfo(torch.bfloat16).eps, atol=1e-5)


def test_float64_is_folded():
    constants = {name: one.double() for name, one in ({"w": r(6, 4, 3, 3)} | statistics(6)).items()}
    folded(lambda x, w, **norm: (batch_norm(F.conv2d(x, w), **norm),), IMAGE.double(), constants, 1)


def test_a_written_or_returned_result_is_the_layers_own():
    def function(x, w, c):
        y = F.conv2d(x, w) * c
        aten.add_.Tensor(y, 1)
        return y, y.relu()

    folded(function, IMAGE, {"w": r(6, 4, 3, 3), "c": r(6, 1, 1)}, 1)


def test_the_limit_on_rewrites_holds():
    def function(x, w, c, **norm):
        return (batch_norm(F.conv2d(x, w), **norm) * c,)

    module = traced(function, IMAGE, {"w": r(6, 4, 3, 3), "c": r(6, 1, 1)} | statistics(6))
    assert run_pass(fold_norms, module, limit=0).count == 0
    assert names(module)[-2:] == [NORM, "mul"]
    assert run_pass(fold_norms, module, limit=1).count == 1
    assert names(module)[-2:] == [CONVOLUTION, "mul"]


def test_lines_of_the_user_stay_with_what_is_written():
    module = traced(lambda x, w, c: (F.conv2d(x, w) * c,), IMAGE, {"w": r(6, 4, 3, 3), "c": r(6, 1, 1)})
    for node in module.graph.nodes:
        node.meta["stack_trace"] = f"of {node.name}"
    run_pass(fold_norms, module)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    traces = {str(node.target).split(".")[1]: node.meta["stack_trace"] for node in calls}
    assert traces == {"view": "of mul", "mul": "of mul", "convolution": "of convolution"}


def test_layouts_are_worked_out_anew_where_a_result_lies_otherwise():
    """A kernel may give the norm of a permuted result without gaps: what was a view of it is one of a copy now."""

    def function(x, w, **norm):
        y = batch_norm(aten.linear.default(x, w).transpose(1, 2), **norm)
        return (y.contiguous().view(y.shape[0], 18),)

    x, constants = r(2, 3, 4), {"w": r(6, 4)} | statistics(6)
    module = traced(function, x, constants)
    want = module(x, *constants.values())
    (clone,) = module.graph.find_nodes(op="call_function", target=aten.clone.default)
    clone.args[0].meta["val"] = clone.meta["val"]
    clone.replace_all_uses_with(clone.args[0])
    module.graph.erase_node(clone)
    assert run_pass(fold_norms, module).count == 1 and names(module)[-2:] == ["clone", "view"]
    torch.testing.assert_close(module(x, *constants.values()), want, rtol=1e-5, atol=1e-5)


# ---- it declines -----------------------------------------------------------------------------------------------------


def _norm_of_readers(x, w, **norm):
    y = F.conv2d(x, w)
    return (batch_norm(y, **norm) + y,)


def _norm_of_a_returned_result(x, w, **norm):
    y = F.conv2d(x, w)
    return y, batch_norm(y, **norm)


def _norm_of_a_view_with_readers(x, w, **norm):
    y = F.conv2d(x, w).transpose(2, 3)
    return batch_norm(y, **norm), y


def _written_between(x, w, **norm):
    y = F.conv2d(x, w)
    aten.mul_.Tensor(y[0], x[0, 0, 0, 0])
    return (batch_norm(y, **norm),)


def _shared_weight(x, w, **norm):
    return batch_norm(F.conv2d(x, w), **norm), w + x[0, 0, 0, 0]


def _shared_part_of_a_weight(x, w, **norm):
    return batch_norm(F.conv2d(x, w[:6]), **norm), F.conv2d(x, w[6:])


def _training(x, w, gamma, beta, mean, var):
    return (aten.native_batch_norm.default(F.conv2d(x, w), gamma, beta, None, None, True, 0.1, 1e-5)[0],)


def _statistics_used(x, w, gamma, beta, mean, var):
    y, other, _ = aten.native_batch_norm.default(F.conv2d(x, w), gamma, beta, mean, var, False, 0.1, 1e-5)
    return y, other


def _after_an_activation(x, w, **norm):
    return (batch_norm(F.conv2d(x, w).relu(), **norm),)


def _on_another_stream(x, w, **norm):
    y = F.conv2d(x, w)
    air.scope_enter(["_user_stream_label"], ["side"])
    z = batch_norm(y, **norm)
    air.scope_exit()
    return (z,)


STATISTICS = {"w": r(6, 4, 3, 3)} | statistics(6)
DECLINED_NORMS = [
    (_norm_of_readers, "convolution has other readers"),
    (_norm_of_a_returned_result, "convolution has other readers"),
    (_norm_of_a_view_with_readers, "transpose has other readers"),
    (_written_between, "convolution has other readers"),
    (_shared_weight, "has other readers, and would be stored a second time"),
    (_training, "as in training"),
    (_statistics_used, "its statistics are used"),
    (_after_an_activation, "stands before it, or alone after it"),
    (_on_another_stream, "run on different streams"),
]


@pytest.mark.parametrize(("function", "reason"), DECLINED_NORMS)
def test_a_norm_is_left_alone(function, reason):
    assert reason in why(function, IMAGE, STATISTICS)


def test_a_part_of_a_weight_that_others_read_is_left_alone():
    assert "would be stored a second time" in why(_shared_part_of_a_weight, IMAGE, STATISTICS | {"w": r(9, 4, 3, 3)})


@pytest.mark.parametrize("name", ["w", "gamma", "beta", "mean", "var"])
def test_a_norm_whose_statistics_or_weights_calls_bring_is_left_alone(name):
    def function(x, w, **norm):
        return (batch_norm(F.conv2d(x, w), **norm),)

    assert "is no constant" in why(function, IMAGE, STATISTICS, marked=STATISTICS.keys() - {name})


def test_statistics_that_are_written_into_are_no_constants():
    def function(x, w, **norm):
        aten.add_.Tensor(norm["mean"], 1)
        return (batch_norm(F.conv2d(x, w), **norm),)

    assert "is no constant" in why(function, IMAGE, STATISTICS)


@pytest.mark.parametrize(
    ("dtype", "target"),
    [(torch.float16, "cpu"), (torch.float16, "npu"), (torch.bfloat16, "npu"), (torch.bfloat16, "cuda")],
)
def test_norms_in_halves_that_no_kernel_takes_are_left_alone(dtype, target):
    halves = {name: one.to(dtype) for name, one in STATISTICS.items()}
    module = traced(lambda x, w, **norm: (batch_norm(F.conv2d(x, w), **norm),), IMAGE.to(dtype), halves)
    (account,) = run_pass(fold_norms, module, target=target).accounts
    assert not account.rewritten and "would be rounded a second time" in account.text


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, **norm: (batch_norm(aten.linear.default(x, w), **norm),),
        lambda x, w, **norm: (batch_norm(F.conv2d(x[..., None, None], w[..., None, None])[..., 0, 0], **norm),),
        lambda x, w, **norm: (lambda y: (batch_norm(y, **norm), y))(F.conv2d(x[..., None, None], w[..., None, None])),
        lambda x, w, **norm: (batch_norm(F.conv_transpose2d(x[..., None, None], w.t()[..., None, None]), **norm),),
    ],
    ids=["linear", "behind a view", "other readers", "transposed"],
)
def test_norms_of_bfloat16_elsewhere_are_left_alone(function):
    constants = {name: one.bfloat16() for name, one in ({"w": r(6, 4)} | statistics(6)).items()}
    assert why(function, r(5, 4).bfloat16(), constants)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_in_halves_are_left_alone(dtype):
    halves = {name: one.to(dtype) for name, one in STATISTICS.items()}
    constants = {name: halves[name] for name in ("w", "gamma")}

    def product(x, w, gamma):
        return (F.conv2d(x, w) * gamma[:, None, None],)

    assert "would be rounded a second time" in why(product, IMAGE.to(dtype), constants)

    def biased(x, w, gamma):
        return (F.conv2d(x, w, gamma) + 1,)

    assert "would be rounded a second time" in why(biased, IMAGE.to(dtype), constants)


def test_constants_of_another_dtype_are_left_alone():
    mixed = {name: one.bfloat16() if name == "w" else one for name, one in STATISTICS.items()}

    def norm(x, w, **norm):
        return (batch_norm(F.conv2d(x, w), **norm),)

    assert "not the same dtype" in why(norm, IMAGE.bfloat16(), mixed)

    def product(x, w, c):
        return (F.conv2d(x, w) * c,)

    for dtype in (torch.float64, torch.int64):
        assert "not the same dtype" in why(product, IMAGE, {"w": r(6, 4, 3, 3), "c": torch.ones(6, 1, 1, dtype=dtype)})


DECLINED_PRODUCTS = {
    "along another dimension": (lambda x, w, c: (F.conv2d(x, w) * c,), (7,), "along the layer's channels alone"),
    "along two": (lambda x, w, c: (F.conv2d(x, w) * c,), (6, 7, 1), "along the layer's channels alone"),
    "larger": (lambda x, w, c: (F.conv2d(x, w) * c,), (3, 1, 6, 1, 1), "makes its result larger"),
    "larger by one": (lambda x, w, c: (F.conv2d(x, w) * c,), (1, 1, 6, 1, 1), "makes its result larger"),
    "a multiple of the result": (
        lambda x, w, c: (torch.add(c, F.conv2d(x, w), alpha=2),),
        (6, 1, 1),
        "multiplies the layer's result",
    ),
    "channels in parts": (
        lambda x, w, c: (F.conv2d(x, w).view(2, 2, 3, 7, 7) * c,),
        (2, 3, 1, 1),
        "along the layer's channels alone",
    ),
    "other readers": (
        lambda x, w, c: (lambda y: (y * c, y))(F.conv2d(x, w)),
        (6, 1, 1),
        "convolution has other readers",
    ),
    "a weight that others read": (
        lambda x, w, c: (F.conv2d(x, w) * c, F.conv2d(x * 2, w)),
        (6, 1, 1),
        "would be stored a second time",
    ),
}


@pytest.mark.parametrize("kind", DECLINED_PRODUCTS)
def test_a_product_is_left_alone(kind):
    function, shape, reason = DECLINED_PRODUCTS[kind]
    assert reason in why(function, IMAGE, {"w": r(6, 4, 3, 3), "c": r(*shape)})


@pytest.mark.parametrize("op", [lambda y: y / 0, lambda y: y * float("inf"), lambda y: y + float("nan")])
def test_numbers_that_spoil_weights_are_left_alone(op):
    assert "would be infinite" in why(lambda x, w: (op(F.conv2d(x, w)),), IMAGE, {"w": r(6, 4, 3, 3)})


def test_an_embedding_that_a_head_shares_is_left_alone():
    def function(ids, w):
        return (aten.linear.default(F.embedding(ids, w) * 2.5, w),)

    assert "would be stored a second time" in why(function, torch.tensor([1, 2]), {"w": r(7, 5)})


def test_a_constant_by_which_others_are_divided_is_no_candidate():
    for function in (lambda x, w, c: (c / F.conv2d(x, w),), lambda x, w, c: (c - F.conv2d(x, w),)):
        module = traced(function, IMAGE, {"w": r(6, 4, 3, 3), "c": r(6, 1, 1)})
        assert not run_pass(fold_norms, module).accounts


DECLINED_NEXT = {
    "padding": (IMAGE, r(6, 4, 3, 3), lambda y, w: F.conv2d(y, w, padding=1), "zeros around"),
    "groups": (IMAGE, r(6, 2, 1, 1), lambda y, w: F.conv2d(y, w, groups=2), "has groups"),
    "transposed": (IMAGE, r(4, 6, 1, 1), lambda y, w: F.conv_transpose2d(y, w), "is transposed"),
    "another dimension": (r(2, 4, 5), r(6, 5), lambda y, w: aten.linear.default(y, w), "another dimension"),
    "other readers": (IMAGE, r(6, 4, 1, 1), lambda y, w: F.conv2d(y, w) + y.sum(), "alone after it"),
}


@pytest.mark.parametrize("kind", DECLINED_NEXT)
def test_a_norm_before_a_layer_is_left_alone(kind):
    x, weight, layer, reason = DECLINED_NEXT[kind]

    def function(x, w, **norm):
        return (layer(batch_norm(x, **norm), w),)

    assert reason in why(function, x, {"w": weight} | statistics(4))


def test_a_norm_of_another_dimension_than_the_channels_is_left_alone():
    def function(x, w, **norm):
        return (batch_norm(aten.linear.default(x, w), **norm),)

    assert "another dimension" in why(function, r(2, 3, 4), {"w": r(6, 4)} | statistics(3))


def test_a_norm_before_a_layer_on_another_stream_is_left_alone():
    def function(x, w, **norm):
        y = batch_norm(x, **norm)
        air.scope_enter(["_user_stream_label"], ["side"])
        z = aten.linear.default(y, w)
        air.scope_exit()
        return (z,)

    assert "different streams" in why(function, r(5, 4), {"w": r(6, 4)} | statistics(4))


def test_a_weight_that_would_not_be_stored_is_left_alone():
    constants = {"w": r(1), "c": r(700, 1, 1)}

    def function(x, w, c):
        return (F.conv2d(x, (w + torch.zeros(700, 700, 1, 1))) * c,)

    assert "is computed in each call" in why(function, r(1, 700, 2, 2), constants)


# ---- the whole line --------------------------------------------------------------------------------------------------

IDS = {"ids": {"shape": ["n", "s"], "dtype": "int64", "range": [0, 50]}}


def normed(number: int = 0, **options: bool) -> dict:
    made = recipe("Normed", IDS, {"n": [1, 3], "s": [5]}, kwargs={"seed": number})
    return made | {"config": {"experimental_config": options}}


def ops(path) -> list[str]:
    program = read_program(path)
    return [program.ops[program.instructions[number].op].name for number in program.entry_points[0].buckets[0].code]


def test_an_artifact_has_neither_norms_nor_products_and_takes_other_weights(tmp_path):
    paths = [aotair.build(normed(number), tmp_path / f"{number}.aotair") for number in (0, 1)]
    assert not any("norm" in op or "mul" in op or "add" in op.replace("addmm", "") for op in ops(paths[0]))
    originals = [Normed(number).eval() for number in (0, 1)]
    save_file({name: one.clone() for name, one in originals[1].state_dict().items()}, tmp_path / "w.safetensors")
    model, fresh = (aotair.load(path, enable_output_clone=True) for path in paths)
    for n in (1, 3):
        ids = torch.randint(50, (n, 5))
        for original in originals:
            with torch.no_grad():
                torch.testing.assert_close(model(ids), original(ids), rtol=1e-5, atol=1e-5)
            if original is originals[0]:
                model.load_weights(tmp_path / "w.safetensors")
        assert torch.equal(model(ids), fresh(ids))
        model.load_weights(paths[0])


@pytest.mark.parametrize("option", ["fold_norms", "fold_constants"])
def test_an_option_leaves_norms_as_they_are(tmp_path, option):
    found = ops(aotair.build(normed(**{option: False}), tmp_path / "x.aotair"))
    assert sum("batch_norm" in op for op in found) == 2


def test_reasons_can_be_asked_for():
    assert "5 done, 0 left alone" in explain(normed()).text("fold_norms")
