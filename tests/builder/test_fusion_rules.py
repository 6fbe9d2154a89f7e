"""Each rule on small graphs: where it fires and what it leaves, and for each condition why it declines."""

import operator
import re

import near
import pytest
import torch
from torch.nn import functional

from aotair import fusion

aten, npu = torch.ops.aten, torch.ops.npu
F16 = torch.float16


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(F16)


ROWS = (half(2, 3, 32), half(2, 3, 32, seed=1), half(32, seed=2))
SCALES, POINTS = half(32).abs() + 1, half(32).round().int()


def fuse(rule: str, function, *inputs: torch.Tensor):
    """The fused graph's ops and what the rule said of what it left; the numbers are checked."""
    _, after, edits = near.fused(function, inputs, (rule,))
    wrong = near.difference(function, inputs, after)
    assert wrong is None, wrong
    ops = [str(node.target) for node in after.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return ops, [account.text for account in edits[rule].accounts if not account.rewritten], edits[rule].count


def fires(rule: str, op: str, function, *inputs: torch.Tensor) -> list[str]:
    ops, left, count = fuse(rule, function, *inputs)
    assert count == 1 and not left and f"npu.{op}.default" in ops, (ops, left)
    return ops


def declines(rule: str, why: str, function, *inputs: torch.Tensor) -> None:
    ops, left, count = fuse(rule, function, *inputs)
    assert count == 0, ops
    assert any(why in reason for reason in left), left


def norm(x1, x2, gamma, *epsilon):
    return npu.npu_add_rms_norm.default(x1, x2, gamma, *epsilon)


# ---- add_rms_norm, then a quantisation by rows ----------------------------------------------------------------------

DYNAMIC, FLAT = "add_rms_norm_dynamic_quant", "add_rms_norm_flatten_dynamic_quant"


@pytest.mark.parametrize("epsilon", [(), (1e-6,), (1e-5,)])
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("keeps_sum", [True, False])
def test_dynamic_quant_in_all_variants(epsilon, smooth, keeps_sum):
    def function(x1, x2, gamma, scales):
        y, _, x = norm(x1, x2, gamma, *epsilon)
        q, scale = npu.npu_dynamic_quant.default(y, smooth_scales=scales if smooth else None)
        return (q, scale, x) if keeps_sum else (q, scale)

    ops = fires(DYNAMIC, DYNAMIC.join(("npu_", "")), function, *ROWS, SCALES)
    assert len(ops) == 1, "the rest is gone"


@pytest.mark.parametrize("keeps_sum", [True, False])
@pytest.mark.parametrize("rank", [3, 4])
def test_flattened_dynamic_quant_gives_the_outputs_of_the_documentation(keeps_sum, rank):
    shape = (2, 3, 4)[: rank - 1]
    inputs = half(*shape, 32), half(*shape, 32, seed=1), ROWS[2]

    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(y.flatten(0, 1))
        return (q, scale.view(-1, 1), x) if keeps_sum else (q, scale.view(-1, 1))

    ops = fires(FLAT, "npu_add_rms_norm_dynamic_quant", function, *inputs)
    assert ops == ["npu.npu_add_rms_norm_dynamic_quant.default", "aten.view.default", "aten.view.default"]


def _quantised(change=lambda y: y, **options):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(change(y), **options)
        return q, scale, x

    return function


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("dst_type=1, which the rule does not take", _quantised(dst_type=1), ROWS),
        ("stands where the rule needs getitem", _quantised(lambda y: y * 1.0), ROWS),
        ("is float32, the fused kernel takes float16 and bfloat16", _quantised(), tuple(t.float() for t in ROWS)),
        ("have different shapes", _quantised(), (ROWS[0], half(1, 3, 32), ROWS[2])),
        ("dimensions, the fused kernel norms the last one", _quantised(), (*ROWS[:2], half(3, 32))),
    ],
)
def test_dynamic_quant_declines(why, function, inputs):
    declines(DYNAMIC, why, function, *inputs)


def test_what_others_use_stays():
    def uses(which):
        def function(x1, x2, gamma):
            y, rstd, x = norm(x1, x2, gamma)
            q, scale = npu.npu_dynamic_quant.default(y)
            return q, scale, {"y": y, "rstd": rstd}[which] * 2, x

        return function

    declines(DYNAMIC, "is also used by mul (aten.mul.Tensor)", uses("y"), *ROWS)
    declines(DYNAMIC, "the result 1 of npu_add_rms_norm is used too", uses("rstd"), *ROWS)


def test_a_result_that_nobody_takes_does_not_hide_a_match():
    from aotair.fusion.matcher import fwd_only
    from aotair.passes import fuse as step

    def function(x1, x2, gamma):
        y, rstd, x = norm(x1, x2, gamma)
        rstd * 2
        return (*npu.npu_dynamic_quant.default(y), x)

    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in ROWS]
    graph = fwd_only(function, fakes, run_functional_passes=False)
    dead = next(node for node in graph.graph.nodes if node.target is aten.mul.Tensor)
    graph.graph.erase_node(dead)
    assert len(graph.graph.find_nodes(op="call_function", target=operator.getitem)) == 5, "one of them is dead"
    edits = near.edits_of(DYNAMIC)
    step.run(graph, edits, next(rule for rule in fusion.RULES if rule.name == DYNAMIC))
    assert edits.count == 1


def test_streams_and_writes_keep_ops_apart():
    def streams(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        q, scale = npu.npu_dynamic_quant.default(y)
        torch.ops.air.scope_exit()
        return q, scale, x

    def writes(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        aten.mul_.Tensor(x1, 2)
        return (*npu.npu_dynamic_quant.default(y), x)

    def waits(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        torch.ops.air.tagged_event_wait("tag")
        return (*npu.npu_dynamic_quant.default(y), x)

    def inside(x1, x2, gamma):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(y)
        torch.ops.air.scope_exit()
        return q, scale, x

    declines(DYNAMIC, "its ops are on different streams", streams, *ROWS)
    declines(DYNAMIC, "something is written, or an event is waited for", writes, *ROWS)
    declines(DYNAMIC, "something is written, or an event is waited for", waits, *ROWS)
    fires(DYNAMIC, "npu_add_rms_norm_dynamic_quant", inside, *ROWS)


def test_an_input_that_comes_too_late():
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        return (*npu.npu_dynamic_quant.default(y, smooth_scales=(x * 2)[0, 0]), x)

    declines(DYNAMIC, "is computed after the first of its results", function, *ROWS)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("is not flatten(0, 1)", lambda y: y.view(12, 16)),
        ("stands where the rule needs aten.view.default", lambda y: y),
    ],
)
def test_flattened_dynamic_quant_declines(why, change):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(change(y))
        return q, scale.view(-1, 1), x

    declines(FLAT, why, function, *ROWS)


def test_a_symbolic_last_dimension_declines():
    from torch.fx.experimental.proxy_tensor import make_fx

    from aotair.passes import fuse as step

    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        return (*npu.npu_dynamic_quant.default(y), x)

    graph = make_fx(function, tracing_mode="symbolic")(*ROWS)
    rule = next(rule for rule in fusion.RULES if rule.name == DYNAMIC)
    edits = near.edits_of(DYNAMIC)
    step.run(graph, edits, rule)
    assert edits.count == 0 and "is symbolic" in edits.accounts[0].text


def _gated(x):
    gate, up = x.split(x.shape[-1] // 2, -1)
    return (functional.silu(gate) * up,)


def _rotated(x, cos, sin):
    first, second = x.split(x.shape[-1] // 2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin,)


@pytest.mark.parametrize(("rule", "function", "inputs"), [("lift_swiglu", _gated, 1), ("lift_rotary", _rotated, 3)])
def test_halves_of_a_symbolic_size_decline(rule, function, inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    from aotair.passes import fuse as step

    graph = make_fx(function, tracing_mode="symbolic")(*(half(2, 3, 5, 16, seed=seed) for seed in range(inputs)))
    edits = near.edits_of(rule)
    step.run(graph, edits, next(one for one in fusion.RULES if one.name == rule))
    assert edits.count == 0 and "is split by a symbolic size" in edits.accounts[0].text


# ---- add_rms_norm, then a cast or given scales ----------------------------------------------------------------------


@pytest.mark.parametrize("by_npu", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("keeps", [(), ("x",), ("y",), ("x", "y", "rows")])
def test_cast_in_all_variants(by_npu, rows, keeps):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma, 1e-5)
        flat = y.view(-1, 32) if rows else y
        wide = npu._npu_dtype_cast.default(flat, torch.float32) if by_npu else flat.float()
        return (wide, *({"x": x, "y": y, "rows": flat * 2}[name] for name in keeps))

    fires("add_rms_norm_cast", "npu_add_rms_norm_cast", function, *ROWS)


def test_cast_declines():
    def to(dtype, view):
        return lambda x1, x2, gamma: (view(norm(x1, x2, gamma)[0]).to(dtype),)

    declines("add_rms_norm_cast", "needs torch.float32", to(torch.float64, lambda y: y), *ROWS)
    declines(
        "add_rms_norm_cast", "does not keep the last dimension 32", to(torch.float32, lambda y: y.view(-1, 16)), *ROWS
    )
    declines("add_rms_norm_cast", "does not keep the last", to(torch.float32, lambda y: y.view(2, 1, 3, 32)), *ROWS)


def _static(dtype: int = 1, axis: int = -1, *mode: bool, points: bool = True, keeps_sum: bool = True):
    def function(x1, x2, gamma, scales, zero):
        y, _, x = norm(x1, x2, gamma)
        q = npu.npu_quantize.default(y, scales, zero if points else None, dtype, axis, *mode)
        return (q, x) if keeps_sum else (q,)

    return function


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("keeps_sum", [True, False])
@pytest.mark.parametrize(("dtype", "axis"), [(1, -1), (12, -1), (1, 2)])
def test_quant_in_all_variants(points, keeps_sum, dtype, axis):
    function = _static(dtype, axis, points=points, keeps_sum=keeps_sum)
    fires("add_rms_norm_quant", "npu_add_rms_norm_quant", function, *ROWS, SCALES, POINTS)


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("dtype=0 is not int8", _static(0), (*ROWS, SCALES, POINTS)),
        ("other arguments than the rule takes", _static(1, -1, False), (*ROWS, SCALES, POINTS)),
        ("axis=0 is not the last dimension", _static(1, 0), (*ROWS, SCALES[:2], POINTS[:2])),
        (
            "last dimension 30 x 2 bytes is not a multiple of 32 bytes",
            _static(),
            (*(t[..., :30].contiguous() for t in ROWS), SCALES[:30], POINTS[:30]),
        ),
        ("has the shape [1]", _static(), (*ROWS, SCALES[:1], POINTS[:1])),
        ("is int8, the fused kernel takes int32 or floats", _static(), (*ROWS, SCALES, POINTS.to(torch.int8))),
        ("is float32, the fused kernel", _static(), (*(t.float() for t in ROWS), SCALES, POINTS)),
    ],
)
def test_quant_declines(why, function, inputs):
    declines("add_rms_norm_quant", why, function, *inputs)


# ---- products -------------------------------------------------------------------------------------------------------

LEFT, RIGHT = half(2, 3, 128), half(2, 128, 128, seed=1) / 128


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (-3, 1), (-2, -3)])
@pytest.mark.parametrize("swapped", [None, (0, 1), (-2, -3)])
@pytest.mark.parametrize("viewed", [True, False])
def test_transposed_products(dims, swapped, viewed):
    def function(x1, x2):
        left = x1 if swapped is None else aten.transpose.int(x1, *swapped)
        product = aten.bmm.default(aten.expand.default(left, left.shape) if viewed else left, x2)
        return (aten.transpose.int(product, *dims) * 1,)

    left = LEFT if swapped is None else LEFT.transpose(0, 1).contiguous()
    ops = fires("transpose_batchmatmul", "npu_transpose_batchmatmul", function, left, RIGHT)
    assert "aten.transpose.int" not in ops


@pytest.mark.parametrize(
    ("why", "dims", "left", "right"),
    [
        ("transposed by (-1, -2), not (0, 1)", (-1, -2), LEFT, RIGHT),
        ("transposed by (0, 2), not (0, 1)", (0, 2), LEFT, RIGHT),
        ("is not a multiple of 128", (0, 1), LEFT, RIGHT[..., :64].contiguous()),
        ("is float64", (0, 1), LEFT.double(), RIGHT.double()),
        ("the kernel takes 1 to 65535", (0, 1), LEFT[:, :0], RIGHT),
    ],
)
def test_transposed_products_decline(why, dims, left, right):
    function = lambda a, b: (aten.transpose.int(aten.bmm.default(a, b), *dims) * 1,)  # noqa: E731
    declines("transpose_batchmatmul", why, function, left, right)


@pytest.mark.parametrize("dims", [(0, 1), (1, 2), (-3, -4)])
@pytest.mark.parametrize("swapped", [None, (0, 1), (1, 2)])
def test_products_of_four_dimensions_are_said_to_be_that(dims, swapped):
    """Whatever is transposed: the number of dimensions is the reason, and the words say nothing else."""

    def function(a, b):
        left = a if swapped is None else aten.transpose.int(a, *swapped)
        return (aten.transpose.int(torch.matmul(left, b), *dims) * 1,)

    sizes = [2, 2, 4, 128] if swapped in (None, (0, 1)) else [2, 4, 2, 128]
    why = r"has 4 dimensions, \[2, .*\]: the kernel takes matrices with one batch dimension"
    _, left, count = fuse("transpose_batchmatmul", function, half(*sizes), half(2, 2, 128, 128, seed=1) / 128)
    assert count == 0 and len(left) == 1 and re.search(why, left[0]) and "transposed by" not in left[0]


# ---- lifting --------------------------------------------------------------------------------------------------------


def llama(x, weight):
    wide = x.to(torch.float32)
    return (weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype),)


def gemma(x, weight):
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return ((normed * (1.0 + weight.float())).type_as(x),)


def olmo(x, weight):
    wide = x.float()
    return ((weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5))).to(x.dtype),)


def divided_last(x, weight):
    return (weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)),)


def divided(x, weight):
    wide = x.float()
    return (weight * (wide / torch.sqrt((wide * wide).mean(2, keepdim=True) + 1e-5)).to(x.dtype),)


def powered(x, weight):
    wide = x.float()
    return ((wide * torch.pow(wide.square().mean(-1, keepdim=True) + 1e-5, -0.5)).type_as(x) * weight,)


def torchs(x, weight):
    return (functional.rms_norm(x, (32,), weight),)


@pytest.mark.parametrize("spelling", [llama, gemma, olmo, divided, powered, torchs])
@pytest.mark.parametrize("dtype", [F16, torch.bfloat16, torch.float32])
def test_rms_norms_are_lifted(spelling, dtype):
    ops = fires("lift_rms_norm", "npu_rms_norm", spelling, ROWS[0].to(dtype), ROWS[2].to(dtype))
    assert len(ops) == (3 if spelling is gemma and dtype != torch.float32 else 2 if spelling is gemma else 1)


def test_other_norms_are_not():
    def mean(dims, epsilon=1e-5, dtype=torch.float32):
        def function(x, weight):
            wide = x.to(dtype)
            return (weight * (wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)).to(x.dtype),)

        return function

    x, weight = ROWS[0], ROWS[2]
    declines("lift_rms_norm", "not over the last dimension", mean((1,)), x, weight)
    declines("lift_rms_norm", "npu_rms_norm computes in float32", mean((-1,), dtype=F16), x, weight)
    declines("lift_rms_norm", "is float64", mean((-1,), dtype=torch.float64), x.double(), weight.double())
    declines("lift_rms_norm", "not that of the last dimension", llama, x, weight[:1])
    _, left, count = fuse("lift_rms_norm", lambda x, w: (functional.layer_norm(x, (32,), w),), x, weight)
    assert count == 0 and not left, "a layer norm is not near"


def test_numbers_and_sizes_are_no_tensors():
    x = half(2, 3, 4, 32)
    wide = lambda x: x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)  # noqa: E731
    declines("lift_rms_norm", "2.0 is not a tensor", lambda x: (wide(x) * 2.0,), x.float())
    declines("lift_swiglu", "2.0 is not a tensor", lambda x: (functional.silu(x) * 2.0,), x)
    declines("lift_rotary", "0.5 is not a tensor", lambda x: rotated(x, 0.5, 0.8), x)
    declines(
        "lift_rms_norm",
        "is cast to torch.bfloat16",
        lambda x, w: (w * wide(x).bfloat16(),),
        x.float(),
        half(32).float(),
    )


def test_the_norm_of_a_number_is_left():
    declines("lift_rms_norm", "has no dimension", divided_last, half(1)[0], half(32))


def test_residual_sums():
    def function(x1, x2, gamma):
        added = x1 + x2
        return npu.npu_rms_norm.default(added, gamma, 1e-5)[0], added

    assert len(fires("lift_add_rms_norm", "npu_add_rms_norm", function, *ROWS)) == 1
    declines("lift_add_rms_norm", "have different shapes", function, ROWS[0], half(32), ROWS[2])
    twice = lambda a, b, g: (npu.npu_rms_norm.default(torch.add(a, b, alpha=2), g)[0],)  # noqa: E731
    declines("lift_add_rms_norm", "alpha=2, which the rule does not take", twice, *ROWS)
    number = lambda a, b, g: (npu.npu_rms_norm.default(a + 1.0, g)[0],)  # noqa: E731
    declines("lift_add_rms_norm", "1.0 is not a tensor", number, *ROWS)


def test_gates():
    gate, up = ROWS[:2]
    separate = lambda a, b: (functional.silu(a) * b,)  # noqa: E731
    assert "aten.cat.default" in fires("lift_swiglu", "npu_swiglu", separate, gate, up)
    assert "aten.cat.default" not in fires("lift_swiglu", "npu_swiglu", lambda x: separate(*x.chunk(2, -1)), gate)
    declines("lift_swiglu", "have different shapes", separate, gate, half(32))
    declines("lift_swiglu", "is also used by", lambda a, b: ((s := functional.silu(a)) * b, s * 2), gate, up)
    assert fuse("lift_swiglu", lambda a, b: (functional.gelu(a) * b,), gate, up)[1:] == ([], 0)


def rotated(x, cos, sin):
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return (x * cos + torch.cat((-second, first), -1) * sin,)


def _by_chunks(first, second, x, cos, sin):
    return (x * cos + torch.cat((-second, first), -1) * sin,)


def test_rotations():
    x, cos, sin = half(2, 3, 4, 32), half(1, 1, 4, 32), half(1, 1, 4, 32, seed=1)
    assert len(fires("lift_rotary", "npu_rotary_mul", rotated, x, cos, sin)) == 1
    fires("lift_rotary", "npu_rotary_mul", lambda x, cos, sin: _by_chunks(*x.chunk(2, -1), x, cos, sin), x, cos, sin)
    for shape in ((1, 3, 4, 32), (1, 1, 1, 32)):
        declines("lift_rotary", "has the shape [1, ", rotated, x, half(*shape), half(*shape))
    declines("lift_rotary", "differ in shape", rotated, x, cos, half(2, 1, 4, 32))
    large = half(1, 1, 2, 896)
    declines("lift_rotary", "not an even number below 896", rotated, large, large, large)
    declines("lift_rotary", "has 3 dimensions", rotated, x[0], cos[0], sin[0])
    declines("lift_rotary", "has the shape [32]", rotated, x, cos[0, 0, 0], sin[0, 0, 0])

    def swapped(x, cos, sin):
        return (x * cos + torch.cat((-x[..., :16], x[..., 16:]), -1) * sin,)

    declines("lift_rotary", "is not cut into halves", swapped, x, cos, sin)


QUERY, KEY = half(2, 4, 5, 32), half(2, 2, 8, 32, seed=1)
SEEN = torch.tensor([True, True, False, True] * 2).expand(1, 1, 5, 8)


def attend(query, key, value, mask=None, **options):
    return functional.scaled_dot_product_attention(query, key, value, mask, **options)


def _shared(query, key, mask):
    key = key[:, :, None].expand(2, 2, 2, 8, 32).reshape(2, 4, 8, 32)
    return (attend(query, key, key, mask, scale=0.2).transpose(1, 2).reshape(2, 5, -1),)


@pytest.mark.parametrize(
    "function",
    [
        _shared,
        lambda q, k, m: (attend(q, k, k, m, enable_gqa=True),),
        lambda q, k, m: (attend(q, k, k, enable_gqa=True, scale=0.1).transpose(1, 2) * 1,),
        lambda q, k, m: (attend(q, q, q, is_causal=True),),
    ],
)
def test_attention(function):
    ops = fires("lift_attention", "npu_fused_infer_attention_score", function, QUERY, KEY, SEEN)
    assert "aten.expand.default" not in ops and "aten.transpose.int" not in ops, "heads are not repeated"


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("is float32", lambda q, k, m: (attend(q, k, k, enable_gqa=True),), (QUERY.float(), KEY.float(), SEEN)),
        ("additive mask", lambda q, k, m: (attend(q, k, k, m, enable_gqa=True),), (QUERY, KEY, SEEN.half())),
        ("differs between heads", lambda q, k, m: (attend(q, q, q, m),), (QUERY, KEY, torch.ones(2, 4, 5, 5).bool())),
        ("has other batches", lambda q, k, m: (attend(q, k[:1], k[:1], enable_gqa=True),), (QUERY, KEY, SEEN)),
        ("heads of different widths", lambda q, k, m: (attend(q, q, q[..., :16]),), (QUERY, KEY, SEEN)),
        (
            "is not a multiple of 16",
            lambda q, k, m: (attend(q, k, k, enable_gqa=True),),
            (QUERY[..., :24].contiguous(), KEY[..., :24].contiguous(), SEEN),
        ),
    ],
)
def test_attention_declines(why, function, inputs):
    declines("lift_attention", why, function, *inputs)


@pytest.mark.parametrize(("queries", "layout"), [(1, "BNSD"), (5, "BNSD_BSND")])
def test_one_query_has_a_layout_and_a_mask_of_its_own(queries, layout):
    """The layout that turns the result is for several queries; one query has a row of the mask for each batch."""
    query, seen = QUERY[:, :, :queries].contiguous(), SEEN[:, :, :queries]
    function = lambda q, k, m: (attend(q, k, k, m, enable_gqa=True).transpose(1, 2) * 1,)  # noqa: E731
    _, after, edits = near.fused(function, (query, KEY, seen), ("lift_attention",))
    assert edits["lift_attention"].count == 1 and near.difference(function, (query, KEY, seen), after) is None
    (node,) = after.graph.find_nodes(op="call_function", target=npu.npu_fused_infer_attention_score.default)
    assert node.kwargs["input_layout"] == layout
    assert node.kwargs["atten_mask"].meta["val"].shape[0] == (2 if queries == 1 else 1)


# ---- grouped attention on the CPU ------------------------------------------------------------------------------------


def _grouped(query, key, mask, times: int = 2, dim: int = 2):
    spread = key.unsqueeze(dim).expand(*key.shape[:dim], times, *key.shape[dim:])
    whole = spread.reshape(key.shape[0], key.shape[1] * times, *key.shape[2:])
    return (attend(query, whole, whole, mask, scale=0.3) * 1,)


def test_repeated_heads_are_not_copied():
    query, key = QUERY.float(), KEY.float()
    for function in (
        lambda q, k, m: _grouped(q, k, m),
        lambda q, k, m: _grouped(q, k, None),
        lambda q, k, m: _grouped(q, k, m.float() * 2),
    ):
        ops, left, count = fuse("group_attention", function, query, key, SEEN)
        assert count == 1 and not left and "aten.expand.default" not in ops and "aten.clone.default" not in ops


@pytest.mark.parametrize(
    ("why", "function"),
    [
        ("along another dimension", lambda q, k, m: _grouped(q, k, m, dim=1)),
        ("different batches", lambda q, k, m: _grouped(q, k[:1], m)),
    ],
)
def test_what_is_repeated_otherwise_is_left_alone(why, function):
    query, key = QUERY.float(), KEY.float()
    declines("group_attention", why, function, query, key, SEEN)
    assert fuse("group_attention", lambda q, k, m: (attend(q, q, q),), query, key, SEEN)[2] == 0


def test_grouped_attention_is_for_the_cpu():
    from aotair.passes.pipeline import pipeline
    from aotair.recipe.config import CompilerConfig
    from aotair.target.target import Target

    for kind in ("cpu", "cuda", "npu"):
        names = [step.name for step in pipeline(CompilerConfig(), Target(kind))]
        assert ("group_attention" in names) == (kind == "cpu")
