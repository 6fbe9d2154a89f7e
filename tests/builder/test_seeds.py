"""The code of TorchAir's documents, line by line: it runs, and its numbers are those of eager.

Replaced everywhere: `torchair.` by `aotair.`, `.npu()` by nothing (the host replays the artifact), `get_npu_backend`
and `torch.compile` by `aotair.build` and `aotair.load`; the models that the documents leave out are written here.
In *FX passes of your own*: `config.debug.graph_dump.type = "pbtxt"` by "py" and `config.ge_config` left out, which the
documents mark as of the mode max-autotune (here they are refused); `torchair.logger` by the logger "aotair"; the
profiler left out. In *Memory shared by aclgraphs*: `config.aclgraph_config.use_custom_pool` by the argument `pool` of
`aotair.load`, and `torch.npu.graph_pool_handle()` by a handle of its form where there is no `torch.npu`.
"""

import inspect
import logging

import pytest
import torch

import aotair
from aotair.ops import npu  # noqa: F401  (the ops of torch_npu, where it is absent)
from aotair_runtime.artifact.open import read_program

CPU = {"device": "cpu"}


def compiled(model, config, folder, *inputs, target=CPU, **options):
    """`torch.compile(model, backend=aotair.get_npu_backend(compiler_config=config))`: the artifact, and it loaded."""
    names = list(inspect.signature(model.forward).parameters)
    path = aotair.build(
        model=model, inputs=dict(zip(names, inputs)), config=config, target=target, out=folder / "seed.aotair"
    )
    return read_program(path), aotair.load(path, device="cpu", **options)


def same(opt_model, model, *inputs):
    with torch.no_grad():
        want = model(*(one.clone() for one in inputs))
        got = opt_model(*(one.clone() for one in inputs))
    torch.testing.assert_close(tuple(got), tuple(want))


# ---- FX passes -------------------------------------------------------------------------------------------------------


class Cached(torch.nn.Module):
    """Intermediates that may be written over, and a cache that is written in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, 3))

    def forward(self, x):
        self.cache.add_(x)
        return (x.exp() + 1) * self.cache, self.cache.relu() * 2


def test_fx_passes(tmp_path):
    config = aotair.CompilerConfig()
    # 配置图执行模式
    config.mode = "reduce-overhead"
    # FX Pass配置开关
    config.debug.aclgraph.disable_reinplace_inplaceable_ops_pass = False
    config.debug.aclgraph.disable_reinplace_input_mutated_ops_pass = False
    _, opt_model = compiled(Cached(), config, tmp_path, torch.randn(3, 3))
    model, x = Cached(), torch.randn([3, 3])
    for _ in range(3):
        same(opt_model, model, x)


# ---- FX passes of your own -------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        mm = torch.mm(x, x)
        abs = torch.abs(mm)
        add = torch.add(abs, 1)
        sub = torch.sub(x, mm)
        return add, sub


# 自定义Pass修改FX图
def _custom_pre_pass(gm, example_inputs, config: aotair.CompilerConfig):
    fx_graph = gm.graph
    for node in fx_graph.nodes:
        if node.op == "call_function" and node.target == torch.ops.aten.mm.default:
            with fx_graph.inserting_before(node):
                # 在torch.ops.aten.mm.default节点前加入torch.ops.air.scope_enter.default节点
                # torch.ops.air.scope_enter和torch.ops.air.scope_exit范围内的节点将在新的流stream_1上执行
                fx_graph.call_function(torch.ops.air.scope_enter.default, args=(
                    ["_user_stream_label"], ["stream_1"]))  # fmt: skip

        if node.op == "call_function" and node.target == torch.ops.aten.abs.default:
            with fx_graph.inserting_after(node):
                # 在torch.ops.aten.abs.default节点(对应脚本中的torch.abs算子)后插入torch.ops.air.record.default节点
                record_node = fx_graph.call_function(torch.ops.air.record.default, args=())
            with fx_graph.inserting_after(record_node):
                fx_graph.call_function(torch.ops.air.scope_exit.default, args=())

        # 在torch.ops.aten.sub.Tensor节点(对应脚本中的torch.sub算子)前插入torch.ops.air.wait.default节点
        # 表示需要等待torch.ops.air.record.default前的节点执行完，torch.ops.aten.sub.Tensor才能执行
        if node.op == "call_function" and node.target == torch.ops.aten.sub.Tensor:
            with fx_graph.inserting_before(node):
                fx_graph.call_function(torch.ops.air.wait.default, args=([record_node],))


@pytest.mark.parametrize("place", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_passes_of_your_own(tmp_path, place, caplog):
    logger = logging.getLogger("aotair")
    caplog.set_level(logging.DEBUG, logger="aotair")
    config = aotair.CompilerConfig()
    # 将自定义Pass注册到TorchAir中
    setattr(config, place, _custom_pre_pass)
    # 可选，使用reduce-overhead模式执行
    config.mode = "reduce-overhead"
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.path = str(tmp_path / "graph_dump")
    with pytest.raises(ValueError, match="pbtxt is for GE"):
        config.debug.graph_dump.type = "pbtxt"
    with pytest.raises(AttributeError, match="no effect here: it is for GE"):
        config.ge_config.optimization_switch = "AutomaticUbFusion:off"
    program, opt_model = compiled(Model(), config, tmp_path, torch.randn([3, 3]))
    x = torch.randn([3, 3])
    same(opt_model, Model(), x)
    where = {one.node.partition("_")[0]: one.stream for one in program.instructions if one.op >= 0}
    assert (where["mm"], where["abs"], where["add"], where["sub"]) == (1, 1, 0, 0)
    # 检查Pass是否生效: 打开Debug日志; 图结构
    assert logger.name == "aotair" and "scope_enter" in caplog.text
    (dumped,) = (tmp_path / "graph_dump").glob(f"*{place}.py")
    words = ["air.scope_enter", "aten.mm", "aten.abs", "air.record", "air.scope_exit", "air.wait", "aten.sub"]
    found = [dumped.read_text().index(f"torch.ops.{word}.") for word in words]
    assert found == sorted(found), "the nodes are there, and where they belong"


# ---- Fusion ----------------------------------------------------------------------------------------------------------


class DynamicQuant(torch.nn.Module):
    def forward(self, x1, x2, gamma, smooth):
        y, _, x_out = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
        y_out, scale = torch.ops.npu.npu_dynamic_quant(y, smooth_scales=smooth)
        return y_out, scale, x_out


class FlattenedQuant(torch.nn.Module):
    def forward(self, x1, x2, gamma, smooth):
        y, _, x_out = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
        y_out, scale = torch.ops.npu.npu_dynamic_quant(y.flatten(0, 1))
        return y_out, scale.view(-1, 1), x_out, smooth + 1


class Cast(torch.nn.Module):
    def forward(self, x1, x2, gamma, smooth):
        y, _, x_out = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
        h = y.size(-1)
        return y.view(-1, h).to(torch.float32), x_out, y, smooth + 1


class Transposed(torch.nn.Module):
    def forward(self, x1, x2, gamma, smooth):
        return torch.matmul(x1, x2).transpose(0, 1), gamma + smooth


class Quantised(torch.nn.Module):
    def forward(self, x1, x2, gamma, smooth):
        y, _, x_out = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
        return torch.ops.npu.npu_quantize(y, smooth, None, torch.qint8, -1, True), x_out


def norm_inputs(*shape):
    return [
        torch.randn(shape).half(),
        torch.randn(shape).half(),
        torch.rand(shape[-1]).half(),
        torch.rand(shape[-1]).half(),
    ]


FUSED = {
    "npu_add_rms_norm_dynamic_quant": (DynamicQuant, norm_inputs(2, 3, 16)),
    "npu_add_rms_norm_dynamic_quant, flattened": (FlattenedQuant, norm_inputs(2, 3, 16)),
    "npu_add_rms_norm_cast": (Cast, norm_inputs(2, 3, 16)),
    "npu_transpose_batchmatmul": (
        Transposed,
        [*(torch.randn(2, 128, 128).half() for _ in "ab"), *norm_inputs(1, 4)[2:]],
    ),
    "npu_add_rms_norm_quant": (Quantised, norm_inputs(2, 3, 32)),
}


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("rule", FUSED)
def test_fusion(tmp_path, rule, on):
    model, inputs = FUSED[rule][0](), FUSED[rule][1]
    config = aotair.CompilerConfig()
    # FX图中算子融合Pass配置
    config.experimental_config.pattern_fusion_pass = on
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.path = str(tmp_path / "dump")
    _, opt_model = compiled(model, config, tmp_path, *inputs, target={"device": "npu"})
    last = max((tmp_path / "dump").glob("*.py")).read_text()
    assert (f"torch.ops.npu.{rule.partition(',')[0]}.default(" in last) is on
    got, want = opt_model(*inputs), model(*inputs)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(
            one.float(), other.float(), atol=1.0 if other.dtype is torch.int8 else 2e-2, rtol=2e-2
        )


# ---- Memory shared by aclgraphs --------------------------------------------------------------------------------------


def graph_pool_handle():
    return torch.npu.graph_pool_handle() if hasattr(torch, "npu") else (0, 1)


def test_memory_shared_by_aclgraphs(tmp_path):
    config = aotair.CompilerConfig()
    # 配置图执行模式
    config.mode = "reduce-overhead"
    # 开启模式一
    pool = graph_pool_handle()
    with pytest.raises(ValueError, match=r"aotair\.load\(path, pool=…\)"):
        config.aclgraph_config.use_custom_pool = pool
    # 关闭模式二
    config.debug.aclgraph.disable_mempool_reuse_in_same_fx = True
    # 关闭模式三
    config.debug.aclgraph.clone_input = False
    # 主动开启输出内存拷贝
    config.debug.aclgraph.enable_output_clone = True
    x = torch.randn([3, 3])
    program, opt_model = compiled(Model(), config, tmp_path, x, pool=pool)
    options = program.options
    assert (options.disable_mempool_reuse_in_same_fx, options.clone_input, options.enable_output_clone) == (
        True,
        False,
        True,
    )
    same(opt_model, Model(), x)
    kept = opt_model(x)
    same(opt_model, Model(), torch.randn([3, 3]))
    torch.testing.assert_close(tuple(kept), Model()(x))


@pytest.mark.parametrize("mode_two", [True, False])
def test_outputs_and_pools(tmp_path, mode_two):
    """Modes one and three at their defaults, in one pool: two models, one after the other."""
    config = aotair.CompilerConfig()
    config.debug.aclgraph.disable_mempool_reuse_in_same_fx = not mode_two
    pool = graph_pool_handle()
    x = torch.randn([3, 3])
    _, first = compiled(Model(), config, tmp_path, x, pool=pool)
    _, second = compiled(Model(), config, tmp_path, x, pool=pool)
    for given in (x, torch.randn([3, 3])):
        same(first, Model(), given)
        same(second, Model(), given)
    held = first(x)
    second(x + 1)
    assert torch.equal(held[0], Model()(x)[0]) is not mode_two
