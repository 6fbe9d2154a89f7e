"""Does every form of op give the CPU's numbers: eager, captured, in place, with out= into an arena?"""

import pytest
import simnpu
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

X, W, B = torch.randn(2, 3, 8, 16), torch.randn(16, 16), torch.randn(16)
A, I = torch.randn(4, 5), torch.tensor([2, 0, 1])  # noqa: E741
V, ROWS = torch.randn(3, 5), I[:, None].expand(3, 5).contiguous()

OPS = {
    "linear": (F.linear, X, W, B),
    "linear_bf16": (F.linear, X.bfloat16(), W.bfloat16()),
    "gelu": (F.gelu, X),
    "silu": (F.silu, X),
    "activations": (lambda x: (F.relu(x), F.mish(x), F.hardswish(x), F.elu(x), x.sigmoid(), x.tanh(), F.glu(x)), X),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), X, B, B),
    "rms_norm": (lambda x, w: F.rms_norm(x, (16,), w), X, B),
    "group_norm": (lambda x: F.group_norm(x, 2), torch.randn(2, 4, 5)),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v), torch.randn(4, 3, 5), torch.randn(3), torch.rand(3)),
    "batch_norm_train": (
        lambda x, m: (F.batch_norm(x, m, m.abs(), training=True), m), torch.randn(4, 3), torch.ones(3)),
    "softmax": (lambda x: F.softmax(x, -1), X),
    "sdpa": (F.scaled_dot_product_attention, X, X, X),
    "sdpa_causal": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), X),
    "sdpa_mask": (lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), X, torch.randn(8, 8)),
    "sdpa_bool": (lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), X, torch.ones(8, 8).tril().bool()),
    "sdpa_groups": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), torch.randn(2, 6, 8, 16), X),
    "conv1d": (F.conv1d, torch.randn(2, 3, 8), torch.randn(4, 3, 3)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)),
    "pool": (lambda x: F.max_pool2d(x, 2), X),
    "index_put_": (lambda x, i, v: x.clone().index_put_((i,), v), A, I, V),
    "index_put_accumulate": (lambda x, i, v: x.clone().index_put_((i,), v, accumulate=True), A, I, V),
    "index_copy_": (lambda x, i, v: x.clone().index_copy_(0, i, v), A, I, V),
    "scatter": (lambda x, i, v: x.scatter(0, i, v), A, ROWS, V),
    "scatter_value_": (lambda x, i: x.clone().scatter_(0, i, 1.0), A, ROWS),
    "scatter_add": (lambda x, i, v: x.scatter_add(0, i, v), A, ROWS, V),
    "cat": (lambda x, y: torch.cat([x, y]), A, V),
    "factories": (lambda x: (torch.arange(5, device=x.device) + x, torch.full((5,), 2.0, device=x.device) * x), A),
    "eye": (lambda x: torch.eye(5, device=x.device) + torch.zeros_like(x)[0] + torch.ones(5, device=x.device), A),
    "embedding": (lambda w, i: F.embedding(i, w), W, I),
    "index_select": (lambda x, i: x.index_select(0, i), A, I),
    "gather": (lambda x, i: x.gather(0, i), A, ROWS),
    "topk": (lambda x: x.topk(3), A),
    "sort": (lambda x: x.sort(), A),
    "where": (lambda c, x: (torch.where(c, x, x), torch.where(c, x, 0.0)), A > 0, A),
    "cumsum": (lambda x: x.cumsum(1), A),
    "baddbmm": (torch.baddbmm, torch.randn(2, 3, 4), torch.randn(2, 3, 5), torch.randn(2, 5, 4)),
    "argmax": (lambda x: (x.argmax(-1), x.max(-1), x.amax(-1), x.mean(-1), x.var(-1)), A),
    "masks": (lambda x: (x.masked_fill(x > 0, -1e9), x.tril(), x.isnan(), (x > 0) & (x < 1)), A),
    "integers": (lambda x: (x & 3, x | 4, ~x, x << 1, x // 2, x % 3, x.to(torch.int8)), torch.arange(6)),
    "lists": (lambda x, y: torch._foreach_add([x, y], 1.0), A, V),
    "lists_": (lambda x: torch._foreach_copy_([torch.empty_like(x)], [x]), A),
    "types": (lambda x: (x.half().float(), x.to(torch.float8_e4m3fn).float(), x.double(), x.bool()), A),
    "strided": (lambda x: (x.t().contiguous(), x[1:, ::2] + 1, x.expand(2, 4, 5) + x[None]), A),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def assert_same(results, expected):
    for ours, theirs in zip(tree_leaves(results), tree_leaves(expected), strict=True):
        assert ours.device.type == "npu"
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.parametrize("name", OPS)
def test_op_eager_and_captured(name, capture):
    function, *inputs = OPS[name]
    expected = function(*[x.clone() for x in inputs])
    assert_same(function(*[x.npu() for x in inputs]), expected)
    device = [torch.zeros_like(x).npu() for x in inputs]
    graph, results = capture(lambda: function(*device))
    for tensor, value in zip(device, inputs):
        tensor.copy_(value)
    graph.replay()
    assert_same(results, expected)


def in_arena(arena, offset, dtype, shape):
    """A tensor in an arena of bytes, as a planned program has it."""
    strides = torch.empty(shape, device="meta").stride()
    return arena[: arena.numel() // 8 * 8].view(dtype).as_strided(shape, strides, offset // dtype.itemsize)


OUT_OPS = {
    "addmm": (torch.ops.aten.addmm.out, (B, X[0, 0], W), torch.float32, (8, 16)),
    "add": (torch.ops.aten.add.out, (A, A), torch.float32, (4, 5)),
    "add_bf16": (torch.ops.aten.add.out, (A.bfloat16(), A.bfloat16()), torch.bfloat16, (4, 5)),
    "add_half": (torch.ops.aten.add.out, (A.half(), A.half()), torch.float16, (4, 5)),
    "gt": (torch.ops.aten.gt.Scalar_out, (A, 0.0), torch.bool, (4, 5)),
    "add_int8": (torch.ops.aten.add.out, (I.to(torch.int8), I.to(torch.int8)), torch.int8, (3,)),
    "argmax": (torch.ops.aten.argmax.out, (A, -1), torch.int64, (4,)),
    "softmax": (torch.ops.aten._softmax.out, (A, -1, False), torch.float32, (4, 5)),
    "index_select": (torch.ops.aten.index_select.out, (A, 0, I), torch.float32, (3, 5)),
    "bmm": (torch.ops.aten.bmm.out, (X[0], W.expand(3, 16, 16)), torch.float32, (3, 8, 16)),
    "cat": (torch.ops.aten.cat.out, ([A, V],), torch.float32, (7, 5)),
    "gather": (torch.ops.aten.gather.out, (A, 0, ROWS), torch.float32, (3, 5)),
    "embedding": (torch.ops.aten.embedding.out, (W, I), torch.float32, (3, 16)),
    "where": (torch.ops.aten.where.self_out, (A > 0, A, A), torch.float32, (4, 5)),
    "cumsum": (torch.ops.aten.cumsum.out, (A, 1), torch.float32, (4, 5)),
    "arange": (torch.ops.aten.arange.out, (5,), torch.int64, (5,)),
    "full": (torch.ops.aten.full.out, ([2, 3], 7.0), torch.float32, (2, 3)),
    "gelu": (torch.ops.aten.gelu.out, (A,), torch.float32, (4, 5)),
    "convolution": (
        torch.ops.aten.convolution.out,
        (torch.randn(2, 3, 8), torch.randn(4, 3, 3), None, [1], [0], [1], False, [0], 1), torch.float32, (2, 4, 6)),
    "empty": (torch.ops.aten.add.out, (A[:0], A[:0]), torch.float32, (0, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", OUT_OPS)
def test_out_into_an_arena(name, capture):
    op, inputs, dtype, shape = OUT_OPS[name]
    move = lambda tree: torch.utils._pytree.tree_map(lambda v: v.npu() if isinstance(v, torch.Tensor) else v, tree)  # noqa: E731
    expected = op(*inputs, out=torch.empty(shape, dtype=dtype))
    arena, device = torch.empty(4099, dtype=torch.uint8, device="npu"), move(inputs)  # no multiple of any type's size
    outs = [in_arena(arena, offset, dtype, shape) for offset in (64, 2048)]
    op(*device, out=outs[0])
    graph, _ = capture(lambda: op(*device, out=outs[1]))
    assert shape[0] == 0 or not torch.equal(outs[1].cpu(), expected)
    graph.replay()
    for out in outs:
        torch.testing.assert_close(out.cpu(), expected)


def test_several_outputs_into_an_arena(capture):
    arena, x = torch.empty(4096, dtype=torch.uint8, device="npu"), A.npu()
    values, indices = in_arena(arena, 64, torch.float32, (4, 3)), in_arena(arena, 512, torch.int64, (4, 3))
    norm = [in_arena(arena, o, torch.float32, s) for o, s in ((1024, (4, 5)), (2048, (4, 1)), (2560, (4, 1)))]

    def body():
        torch.ops.aten.topk.values(x, 3, values=values, indices=indices)
        torch.ops.aten.native_layer_norm.out(x, [5], None, None, 1e-5, out0=norm[0], out1=norm[1], out2=norm[2])

    graph, _ = capture(body)
    graph.replay()
    assert_same([values, indices], torch.topk(A, 3))
    assert_same(norm, torch.native_layer_norm(A, [5], None, None, 1e-5))


def test_out_is_resized_when_it_comes_empty():
    out = torch.empty(0, device="npu")
    torch.add(A.npu(), 1, out=out)
    torch.testing.assert_close(out.cpu(), A + 1)


def test_captured_in_inference_mode_and_replayed_outside(capture):
    with torch.inference_mode():
        x = torch.ones(4).npu()
        graph, y = capture(lambda: x.mul(2).add_(1))
    graph.replay()
    assert y.cpu().tolist() == [3.0] * 4


def test_an_npu_op_needs_a_reference_and_takes_one(capture):
    x = torch.randn(3, 8)
    with pytest.raises(NotImplementedError, match=r"simnpu\.register"):
        torch.ops.npu.npu_silu(x.npu())
    simnpu.register("npu::npu_silu", torch.nn.functional.silu)
    device = x.npu()
    graph, result = capture(lambda: torch.ops.npu.npu_silu(device))
    graph.replay()
    assert_same(result, torch.nn.functional.silu(x))


def test_null_device_runs_nothing(capture):
    x = torch.ones(4).npu()
    graph, y = capture(lambda: x + 1)
    graph.replay()
    with simnpu.null_device():
        before = simnpu.launches()
        x.copy_(torch.zeros(4))
        graph.replay()
        x + 1
        x.add_(1)
        captured, z = capture(lambda: x + 5)
        simnpu.launch(lambda: 1 / 0)
        assert simnpu.launches() == before
    assert (x.cpu()[0], y.cpu()[0]) == (1, 2)
    captured.replay()
    assert z.cpu()[0] == 6


def test_reading_a_value_waits_for_the_device():
    x = torch.arange(4).npu()
    assert (x.sum().item(), bool((x == x).all()), torch.equal(x, x), x.tolist()) == (6, True, True, [0, 1, 2, 3])
    assert x.nonzero().cpu().flatten().tolist() == [1, 2, 3]
