"""One bucket: concrete sizes, lowered composites, ops taken apart that a node lacks; the encoder's graphs as text."""

import models
import pytest
import torch
from cases import MODELS, RECIPES, ROOT
from exports import exported
from graphs import targets, trace
from torch.fx.experimental.proxy_tensor import make_fx

import aotair
from aotair.errors import UnsupportedError
from aotair.graph.show import show
from aotair.graph.streams import RECORD
from aotair.lower.specialise import specialise
from aotair.passes import pipeline
from aotair.passes.observer import Observer
from aotair.target.target import HOST, Target
from aotair_runtime.artifact.open import read_program
from aotair_runtime.confine.op_table import Allowed


def test_every_stage_of_the_encoder_as_text(golden_text, tmp_path):
    recipe, result = exported("encoder")
    observer = Observer(Target("cpu"), dump=tmp_path)
    observer.stage("export", result.module)
    pipeline.apply(result.module, recipe.config, observer)
    for file in sorted(tmp_path.iterdir()):
        golden_text(f"encoder_{file.name}", file.read_text())
    concrete = specialise(result.module, {"ids": (4, 8), "mask": (4, 8)}, "test")
    golden_text("encoder_specialised.txt", show(concrete))
    golden = (ROOT / "tests" / "golden").glob("encoder_[0-9]*.txt")
    assert {file.name for file in golden} == {f"encoder_{file.name}" for file in tmp_path.iterdir()}


def test_specialising_leaves_no_sizes_and_copies_constants_that_are_returned():
    _, result = exported("encoder")
    concrete = specialise(result.module, {"ids": (1, 4), "mask": (1, 4)}, "test")
    for node in concrete.graph.nodes:
        assert "sym" not in str(node.target)
        value = node.meta["val"] if node.op != "output" else None
        if isinstance(value, torch.Tensor):
            assert all(type(size) is int for size in value.shape)
    _, views = exported("views")
    concrete = specialise(views.module, {"x": (3, 4)}, "test")
    returned = concrete.graph.output_node().args[0][1]
    assert returned.target is torch.ops.aten.clone.default


def apart(name: str, device: str) -> dict:
    return {
        "name": "apart",
        "model": {"factory": f"{MODELS}:Apart", "kwargs": {"name": name}},
        "inputs": {"x": {"shape": ["n", 4, 4, 4], "dtype": "float32"}},
        "buckets": {"n": [1, 2]},
        "target": {"device": device},
    }


@pytest.mark.parametrize("device", ["npu", "cuda"])
@pytest.mark.parametrize("name", models.APART)
def test_an_op_without_a_kernel_becomes_what_it_is_made_of(name, device, tmp_path):
    path = aotair.build(apart(name, device), tmp_path / "x.aotair")
    with aotair.load(path, device="cpu") as model:
        x = torch.randn(2, 4, 4, 4)
        torch.testing.assert_close(model(x), models.APART[name](x))


def test_an_op_whose_parts_have_no_kernel_is_refused_when_it_is_built(tmp_path):
    with pytest.raises(UnsupportedError, match=r"_logcumsumexp.* has no kernel on npu \(test_specialise") as caught:
        parts = {key: value for key, value in apart("", "npu").items() if key != "model"}
        aotair.build(model=LogCumSumExp(), out=tmp_path / "x", **parts)
    assert not (tmp_path / "x").exists() and "host" in caught.value.fix


class LogCumSumExp(torch.nn.Module):
    def forward(self, x):
        return x.logcumsumexp(-1)


def test_what_has_an_out_kernel_stays_whole(tmp_path):
    """gelu has a kernel of torch_npu that writes into given memory, and is not taken apart."""
    path = aotair.build(RECIPES["encoder"] | {"target": {"device": "npu"}}, tmp_path / "x.aotair")
    names = {op.name for op in read_program(path).ops}
    assert not {name for name in names if name.startswith(("aten::erf", "aten::rsqrt"))}, names


# ---- sizes -----------------------------------------------------------------------------------------------------------

aten = torch.ops.aten
library = torch.library.Library("aotairspecial", "FRAGMENT")


def define(schema: str, function, key: str = "CompositeExplicitAutograd", shape=None) -> None:
    name = schema.partition("(")[0]
    library.define(schema)
    library.impl(name, function, key)
    if shape is not None:
        library.impl(name, shape, "Meta")


define("twice(Tensor x) -> Tensor", lambda x: x * 2)
define("minmax(Tensor x) -> (Tensor, Tensor)", lambda x: (x.amin(0), x.amax(0)))
define("parts(Tensor x) -> Tensor[]", lambda x: [x + 1, x + 2, x + 3])
define("add_into(Tensor(a!) x, Tensor y) -> ()", lambda x, y: None, "CPU", lambda x, y: None)
define("sum_as_number(Tensor x) -> Tensor", lambda x: x * float(x.sum()), "CPU", torch.empty_like)
define("outer(Tensor x) -> Tensor", lambda x: torch.ops.aotairspecial.sum_as_number(x) + 1)
special = torch.ops.aotairspecial


def symbolic(function, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of a function with symbols for all sizes."""
    return make_fx(function, tracing_mode="symbolic")(*inputs)


def specialised(function, traced: tuple, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph, traced with some inputs, for others, after checking that it gives the same as the function there."""
    module = symbolic(function, *traced)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    concrete = specialise(module, dict(zip(names, (tuple(t.shape) for t in inputs))), "here")
    concrete.graph.lint()
    given = [tensor.clone() for tensor in inputs]
    for mine, theirs in zip(concrete(*given), function(*(tensor.clone() for tensor in inputs)), strict=True):
        torch.testing.assert_close(mine, theirs)
    return concrete


def sized(x):
    """A graph whose ops take sizes in every way."""
    rows, columns = x.shape
    return (x.view(columns, rows) * rows, x.new_zeros(columns // 2), torch.arange(rows) + columns, x[: rows - 1])


@pytest.mark.parametrize("shape", [(4, 6), (2, 3), (1, 1), (7, 1), (5, 2)])
def test_a_graph_with_symbols_is_right_for_each_size(shape):
    concrete = specialised(sized, (torch.zeros(4, 6),), torch.randn(shape))
    for node in concrete.graph.nodes:
        if node.op == "call_function":
            assert isinstance(node.target, torch._ops.OpOverload) and "sym" not in str(node.target)
            assert not any(isinstance(arg, torch.SymInt) for arg in torch.utils._pytree.tree_leaves(node.args))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_placeholders_have_the_buckets_shapes_in_order(dtype):
    concrete = specialised(lambda x: (x.clone(),), (torch.zeros(4, 6).to(dtype),), torch.ones(3, 2).to(dtype))
    (x,) = concrete.graph.find_nodes(op="placeholder")
    assert (tuple(x.meta["val"].shape), x.meta["val"].stride(), x.meta["val"].dtype) == ((3, 2), (2, 1), dtype)
    assert "constant" not in x.meta


def test_what_is_no_input_is_a_constant_in_order():
    module = trace(lambda x, w: (x @ w,), torch.zeros(2, 3), torch.zeros(3, 3).t())
    concrete = specialise(module, {"x_1": (2, 3)}, "here")
    _, w = concrete.graph.find_nodes(op="placeholder")
    assert w.meta["constant"] and w.meta["val"].stride() == (3, 1)


def test_constants_and_their_views_are_copied_where_they_are_returned():
    module = trace(lambda x, w: (w, w[0], w + x, x), torch.zeros(3), torch.zeros(2, 3))
    concrete = specialise(module, {"x_1": (3,)}, "here")
    returned = [str(node.target) for node in concrete.graph.output_node().args[0]]
    assert returned == ["aten.clone.default", "aten.clone.default", "aten.add.Tensor", "x_1"]


def test_lines_streams_and_names_are_kept():
    module = trace(lambda x: (x.exp() + 1,), torch.zeros(3))
    exp, add = (node for node in module.graph.nodes if node.op == "call_function")
    exp.meta |= {"stack_trace": "a line", "stream": 1}
    module.graph.output_node().meta |= {"streams": 2, "priorities": (0, -1), "else": 3}
    concrete = specialise(module, {"x_1": (3,)}, "here")
    made = {node.name: node.meta for node in concrete.graph.nodes}
    assert (made["exp"]["stack_trace"], made["exp"]["stream"], made["add"]["stream"]) == ("a line", 1, 0)
    kept = concrete.graph.output_node().meta
    assert kept["streams"] == 2 and kept["priorities"] == (0, -1) and "else" not in kept
    assert add.name in made


def test_events_are_copied():
    module = trace(lambda x: (x + 1,), torch.zeros(3))
    with module.graph.inserting_before(module.graph.output_node()):
        record = module.graph.call_function(RECORD, ("a",))
    record.meta |= {"event": 4, "stream": 1, "val": None}
    concrete = specialise(module, {"x_1": (3,)}, "here")
    (made,) = (node for node in concrete.graph.nodes if node.target is RECORD)
    assert made.meta["event"] == 4 and made.meta["stream"] == 1


def test_an_op_that_refuses_the_sizes_is_refused_with_bucket_and_line():
    module = symbolic(lambda x, y: (torch.cat([x, y], 1),), torch.zeros(4, 2), torch.zeros(4, 3))
    (cat,) = (node for node in module.graph.nodes if node.target is aten.cat.default)
    cat.meta["stack_trace"] = '  File "/somewhere/model.py", line 7, in forward\n    text\n'
    with pytest.raises(UnsupportedError) as caught:
        specialise(module, {"x_1": (4, 2), "y_1": (3, 3)}, "bucket n=4")
    error = caught.value
    assert error.what == "the op aten.cat.default refuses these sizes (model.py:7, in forward)"
    assert (error.where, error.fix) == ("bucket n=4", "leave out the bucket") and error.__cause__ is not None
    assert error.got.startswith("RuntimeError: Sizes of tensors must match")


def test_what_is_written_in_place_runs_though_it_gives_nothing():
    module = trace(lambda x, y: (special.add_into(x, y), y + 1)[1:], torch.zeros(3), torch.ones(3))
    concrete = specialise(
        module, {"x_1": (3,), "y_1": (3,)}, "here", Target("cpu", allowed=Allowed(("aotairspecial",)))
    )
    assert "aotairspecial.add_into.default" in targets(concrete)


# ---- ops that nodes lack ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("function", "ops"),
    [
        (lambda x: (special.twice(x + 1),), {"aten.add.Tensor", "aten.mul.Tensor"}),
        (lambda x: tuple(special.minmax(x)), {"aten.amin.default", "aten.amax.default"}),
        (lambda x: (special.minmax(x)[1] * 2,), {"aten.amin.default", "aten.amax.default", "aten.mul.Tensor"}),
        (lambda x: (special.parts(x)[1],), {"aten.add.Tensor"}),
        (lambda x: (special.twice(special.twice(x)),), {"aten.mul.Tensor"}),
    ],
)
def test_an_op_of_another_namespace_becomes_its_calls(function, ops, size):
    concrete = specialised(function, (torch.zeros(3, 2),), torch.randn(size, 2))
    assert set(targets(concrete)) - {"aten.amin.default"} == ops - {"aten.amin.default"}


def test_its_calls_come_from_its_line_and_run_on_its_stream():
    module = trace(lambda x: (special.twice(x),), torch.zeros(3))
    (node,) = (n for n in module.graph.nodes if n.op == "call_function")
    node.meta |= {"stack_trace": "a line", "stream": 3}
    (made,) = (n for n in specialise(module, {"x_1": (3,)}, "here").graph.nodes if n.op == "call_function")
    assert (made.target, made.meta["stack_trace"], made.meta["stream"]) == (aten.mul.Tensor, "a line", 3)


def test_an_allowed_namespace_stays_whole():
    module = trace(lambda x: (special.twice(x),), torch.zeros(3))
    concrete = specialise(module, {"x_1": (3,)}, "here", Target("cpu", allowed=Allowed(("other", "aotairspecial"))))
    assert targets(concrete) == ["aotairspecial.twice.default"]


@pytest.mark.parametrize("function", [special.sum_as_number, special.outer])
def test_one_that_reads_values_is_refused_with_all_that_helps(function):
    module = trace(lambda x: (function(x),), torch.zeros(3))
    with pytest.raises(UnsupportedError) as caught:
        specialise(module, {"x_1": (3,)}, "bucket n=1", Target("cpu", allowed=Allowed(("mine",))))
    error = caught.value
    assert error.what.startswith("the op aotairspecial::sum_as_number is none that a node has")
    assert error.expected == "ops of the namespaces aten, npu, air, mine, or made of them"
    assert error.got.startswith("a kernel that cannot be taken apart: ") and error.where == "bucket n=1"
    assert "target.allow_namespaces: [aotairspecial] (--allow-namespace aotairspecial)" in error.fix


@pytest.mark.parametrize("device", ["npu", "cuda"])
@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: (x.t(),), aten.t.default),  # a view
        (lambda x: (x.clone(),), aten.clone.default),  # a copy
        (lambda x: (torch.zeros_like(x),), aten.zeros_like.default),  # a fill
        (lambda x: (x @ x.t(),), aten.mm.default),  # its own kernel
    ],
)
def test_what_other_devices_have_stays_as_it_is(function, op, device):
    module = trace(function, torch.zeros(2, 3))
    concrete = specialise(module, {"x_1": (2, 3)}, "here", Target(device))
    assert op in [node.target for node in concrete.graph.nodes]


def test_what_reads_a_value_for_the_host_is_on_other_devices_refused():
    module = trace(lambda x: (aten._logcumsumexp(x, 0),), torch.zeros(3))
    with pytest.raises(UnsupportedError, match="has no kernel on npu") as caught:
        specialise(module, {"x_1": (3,)}, "here", Target("npu"))
    assert caught.value.got.startswith("not made of others: ")
    assert targets(specialise(module, {"x_1": (3,)}, "here")) == ["aten._logcumsumexp.default"]


@pytest.mark.parametrize("name", ["aten::add.Tensor", "npu::npu_rms_norm", "air::paged_attention"])
def test_nodes_have_the_ops_of_the_table(name):
    class Op:
        def name(self):
            return name

    assert HOST.names(Op()) and Target("npu").names(Op())


@pytest.mark.parametrize(
    "name",
    ["aotairspecial::twice", "aten::set_", "aten::resize_", "air::anything", "aten::native_batch_norm", "no op at all"],
)
def test_others_and_ops_that_no_artifact_may_hold_they_have_not(name):
    class Op:
        def name(self):
            return name

    assert not HOST.names(Op())
    assert Target("cpu", allowed=Allowed(("aotairspecial",))).names(Op()) == name.startswith("aotair")
