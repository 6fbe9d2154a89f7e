"""Custom ops that no node has: taken apart where their kernels are torch's ops, else refused with the model's line."""

import subprocess
import sys
from pathlib import Path

import models
import pytest
import torch
from cases import recipe
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import long
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import aotair
from aotair.cli import main
from aotair.errors import UnsupportedError
from aotair.lower.bodies import NoBody, _grouped, body, defining_packages, kernel_calls
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program
from aotair_runtime.weights.golden import replay_golden

X = {"shape": ["n", 4], "dtype": "float32"}
LOADS = """
import sys, aotair
from aotair_runtime.weights.golden import replay_golden
assert all(result.within for result in replay_golden(aotair.load(sys.argv[1])))
assert not {"transformers", "models"} & set(sys.modules)
print("right")
"""


def answers_in_a_fresh_process(path) -> bool:
    done = subprocess.run([sys.executable, "-c", LOADS, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr
    return True


def ops(path) -> set[str]:
    return {op.name for op in read_program(path).ops}


_library = torch.library.Library("aotairbody", "FRAGMENT")


def define(schema: str, function, key: str, shape=None) -> None:
    _library.define(schema)
    _library.impl(schema.partition("(")[0], function, key)
    if shape is not None:
        _library.impl(schema.partition("(")[0], shape, "Meta")


def _window(x, n):
    """Two results, and writes into its own memory by slices and by an out argument."""
    y = torch.zeros(x.size(0), n, dtype=x.dtype, device=x.device)
    y[:, 1:3] = x[:, :2]
    torch.add(x[:, :1], 1, out=y[:, :1])
    return y, x.sum(1)


def _by_size(x):
    """What it computes depends on the size."""
    return x * 2 if x.shape[0] > 2 else x - 1


define("window(Tensor x, int n) -> (Tensor, Tensor)", _window, "CompositeExplicitAutograd")
define("by_size(Tensor x) -> Tensor", _by_size, "CPU", torch.empty_like)
define("outer(Tensor x) -> Tensor", lambda x: torch.ops.aotairbody.by_size(x) + 1, "CompositeExplicitAutograd")
define(
    "gelu_twice(Tensor x, *, float by=1.0) -> Tensor",
    lambda x, by=1.0: torch.nn.functional.gelu(x) * by,
    "CompositeImplicitAutograd",
)
define("data(Tensor x) -> Tensor", lambda x: x * float(x.sum()), "CPU", torch.empty_like)


class Custom(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        found = getattr(torch.ops.aotairbody, self.op)
        if self.op == "window":
            y, total = found(x + 1, 5)
            return y * 2, total
        return found(x + 1, by=3.0) if self.op == "gelu_twice" else found(x + 1)


def custom(op: str) -> torch.nn.Module:
    return Custom(op)


def of(op: str, **parts) -> dict:
    model = {"factory": f"{__name__}:custom", "kwargs": {"op": op}}
    return recipe("custom", {"x": X}, {"n": [1, 2, 4]}) | {"model": model} | parts


@pytest.mark.parametrize("op", ["window", "by_size", "gelu_twice", "outer"])
def test_a_kernel_of_torchs_ops_is_taken_apart(op, tmp_path):
    path = aotair.build(of(op), tmp_path / "x.aotair")
    assert not any(name.startswith("aotairbody") for name in ops(path))
    assert answers_in_a_fresh_process(path)


def test_what_it_writes_into_is_written(tmp_path):
    shape = {"shape": [3, 4], "dtype": "float32"}
    path = aotair.build(recipe("Accumulates", {"x": shape, "total": shape | {"mutated": True}}), tmp_path / "x.aotair")
    assert not any(name.startswith("aotairtest") for name in ops(path))
    model, reference = aotair.load(path, enable_output_clone=True), models.Accumulates()
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    for turn in range(3):
        x = torch.full((3, 4), float(turn))
        torch.testing.assert_close(model(x, mine), reference(x, theirs))
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(model.state["seen"], reference.seen)


def test_a_kernel_that_reads_values_is_refused_with_the_line(tmp_path):
    with pytest.raises(UnsupportedError) as refused:
        aotair.build(of("data"), tmp_path / "x.aotair")
    said = str(refused.value)
    assert "aotairbody::data" in said and "test_bodies.py:" in said and "--allow-namespace aotairbody" in said
    assert not (tmp_path / "x.aotair").exists()


def test_an_allowed_namespace_stays_whole_and_the_build_says_what_nodes_import(tmp_path, monkeypatch):
    import yaml

    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(of("data")))
    out = str(tmp_path / "x.aotair")
    command = ["build", str(file), "-o", out, "--allow-namespace", "aotairbody"]
    built = CliRunner().invoke(main, command, catch_exceptions=False)
    assert built.exit_code == 0 and "nodes import, and allow aotairbody" in built.output
    assert "aotairbody::data" in ops(Path(out))
    refused = CliRunner().invoke(main, ["verify", out], catch_exceptions=False)
    assert refused.exit_code == 1 and "--allow-namespace aotairbody" in refused.output
    for rest in (["verify", out], ["bench", out, "--seconds", "0.01"]):
        done = CliRunner().invoke(main, [*rest, "--allow-namespace", "aotairbody", "--import", __name__])
        assert done.exit_code == 0, done.output
    missing = CliRunner().invoke(main, ["verify", out, "--import", "no_such_module"], catch_exceptions=False)
    assert missing.exit_code == 1 and "no_such_module" in missing.output
    with aotair.load(out, allow_namespaces=["aotairbody"]) as model:
        assert all(result.within for result in replay_golden(model))


# ---- grouped products of transformers --------------------------------------------------------------------------------

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "pad_token_id": None,
    "bos_token_id": None,
}


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def mixture(name: str) -> torch.nn.Module:
    import transformers

    experts = {"num_experts" if name == "Olmoe" else "num_local_experts": 4}
    config = getattr(transformers, f"{name}Config")(**SMALL | experts)
    return Logits(getattr(transformers, f"{name}ForCausalLM")(config))


@pytest.mark.parametrize(
    "name, device, dtype",
    [
        long("Mixtral", "cpu", "float32"),
        ("Mixtral", "npu", "float16"),
        long("Olmoe", "cpu", "bfloat16"),
        long("GraniteMoe", "cpu", "float32"),
        long("GraniteMoe", "npu", "float16"),
    ],
)
def test_mixtures_of_experts_build_and_load(name, device, dtype, tmp_path):
    ids = {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 64]}
    given = recipe("mixture", {"input_ids": ids}, {"batch": [1, 2], "seq": [3, 8]})
    given |= {"model": {"factory": f"{__name__}:mixture", "kwargs": {"name": name}, "dtype": dtype}}
    if dtype != "float32":
        given |= {"verify": {"atol": 5e-2, "rtol": 5e-2}}
    path = aotair.build(given | {"target": {"device": device}}, tmp_path / "x.aotair")
    assert ("npu::npu_grouped_matmul" in ops(path)) == (device == "npu")
    if device == "cpu":
        assert answers_in_a_fresh_process(path)
    else:
        with aotair.load(path, device="cpu") as model:
            assert all(result.within for result in replay_golden(model))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    beyond=st.integers(0, 2),
    k=st.sampled_from([3, 8]),
    device=st.sampled_from(["cpu", "cuda", "npu"]),
    half=st.booleans(),
    biased=st.booleans(),
)
def test_grouped_products_are_those_of_transformers(sizes, beyond, k, device, half, biased):
    import transformers.integrations.moe  # noqa: F401 (defines the op)

    dtype = torch.bfloat16 if half else torch.float32
    x, weight = torch.randn(sum(sizes) + beyond, k).to(dtype), torch.randn(len(sizes), k, 8).to(dtype)
    ends = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    want = torch.ops.transformers.grouped_mm_fallback(x, weight, ends)
    bias = torch.randn(len(sizes), 8).to(dtype) if biased else None
    if bias is not None:
        own = bias.repeat_interleave(torch.tensor(sizes), 0)
        want[: sum(sizes)] = (want[: sum(sizes)].float() + own.float()).to(dtype)
    got = _grouped(Target(device), x, weight, ends, bias)
    torch.testing.assert_close(
        got[: sum(sizes)], want[: sum(sizes)], rtol=2e-2 if half else None, atol=4e-2 if half else None
    )


# ---- a body alone ----------------------------------------------------------------------------------------------------

aten = torch.ops.aten


def body_of(op, *args, device: str = "cpu", **kwargs):
    """The calls of an op on fake tensors like the given ones, after checking that they compute the same."""
    mode = FakeTensorMode()
    fake = pytree.tree_map(lambda v: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v, (args, kwargs))
    made = body(mode, op, *fake, Target(device))
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    torch.testing.assert_close(made(*[t.clone() for t in tensors]), op(*args, **kwargs))
    return made


def called(module) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


define("nothing(Tensor x) -> Tensor", lambda x: x.new_empty(0), "Meta")
define("itself(Tensor x) -> Tensor", lambda x: torch.ops.aotairbody.itself(x), "CPU", torch.empty_like)
define("held(Tensor x) -> Tensor", lambda x: x + torch.tensor([1.0, 2.0, 3.0]), "CPU", torch.empty_like)
define(
    "lists(Tensor[] xs, *, Tensor? y=None) -> Tensor",
    lambda xs, y=None: xs[0] + xs[1] * (1 if y is None else y),
    "CompositeExplicitAutograd",
)
body_ops = torch.ops.aotairbody
SAMPLE = torch.randn(3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (0, 4)])
def test_a_body_is_the_calls_of_the_kernel_for_these_sizes(shape, dtype):
    made = body_of(body_ops.window.default, torch.randn(shape).to(dtype), 5)
    assert not any("aotairbody" in name or name.endswith("_.default") for name in called(made)), "and writes nothing"


def test_the_size_decides_which_calls_they_are():
    assert called(body_of(body_ops.by_size.default, torch.randn(3))) == ["aten.mul.Tensor"]
    assert called(body_of(body_ops.by_size.default, torch.randn(2))) == ["aten.sub.Tensor"]


def test_tensors_in_lists_and_by_name_are_placeholders_in_order():
    made = body_of(body_ops.lists.default, [SAMPLE, SAMPLE + 1])
    assert len(made.graph.find_nodes(op="placeholder")) == 2
    made = body_of(body_ops.lists.default, [SAMPLE, SAMPLE + 1], y=SAMPLE + 2)
    assert len(made.graph.find_nodes(op="placeholder")) == 3


def test_of_torchs_own_the_decomposition_serves_where_no_kernel_does():
    made = body_of(aten._log_softmax.default, SAMPLE, 1, False, device="npu")
    assert "aten._log_softmax.default" not in called(made) and "aten.exp.default" in called(made)


def test_views_stay_views():
    define("part(Tensor x) -> Tensor", lambda x: x[:, :2].t() + 1, "CompositeExplicitAutograd")
    assert called(body_of(body_ops.part.default, SAMPLE)) == ["aten.slice.Tensor", "aten.t.default", "aten.add.Tensor"]


def calls_of(op, *args) -> list[str]:
    mode = FakeTensorMode()
    fake = pytree.tree_map(lambda v: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v, args)
    return [str(call.op) for call in kernel_calls(mode, op, fake, {})]


def test_the_calls_of_a_kernel_are_its_own():
    assert any(name.endswith("copy_.default") for name in calls_of(body_ops.window.default, SAMPLE, 5))


@pytest.mark.parametrize("op", [aten.remainder, aten.fmod, aten.bitwise_and, aten.add, aten.eq])
def test_a_kernel_that_makes_a_tensor_of_a_number_calls_the_op_of_tensors(op):
    calls = calls_of(op.Scalar, torch.arange(4), 3)
    assert calls[-1] in (f"aten.{op._qualified_op_name.removeprefix('aten::')}.Tensor", str(op.Scalar_out)), calls


def test_a_kernel_that_cannot_run_on_fake_tensors_has_no_calls_to_tell():
    with pytest.raises(NoBody):
        calls_of(body_ops.data.default, SAMPLE)


@pytest.mark.parametrize(
    ("op", "args", "says"),
    [
        (body_ops.data.default, (SAMPLE,), ""),
        (body_ops.itself.default, (SAMPLE,), ""),
        (body_ops.held.default, (torch.ones(3),), "it holds a tensor of its own"),
        (body_ops.nothing.default, (SAMPLE,), "it has none"),
        (aten.mm.default, (SAMPLE, SAMPLE.t()), "it is no other ops"),
    ],
)
def test_what_has_no_body_says_why(op, args, says):
    with pytest.raises(NoBody) as caught:
        body_of(op, *args)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_the_reason_is_the_first_line_of_what_was_raised():
    def fails(x):
        raise ValueError("\n  one\ntwo")

    define("fails(Tensor x) -> Tensor", fails, "CPU", torch.empty_like)
    define("fails_silently(Tensor x) -> Tensor", lambda x: (_ for _ in ()).throw(KeyError), "CPU", torch.empty_like)
    with pytest.raises(NoBody, match=r"^ValueError: one$"):
        body_of(body_ops.fails.default, SAMPLE)
    with pytest.raises(NoBody, match=r"^KeyError: $"):
        body_of(body_ops.fails_silently.default, SAMPLE)


def test_writes_into_arguments_are_copied_there_at_the_end():
    def twice_into(x):
        x.mul_(2)

    define("twice_into(Tensor(a!) x) -> ()", twice_into, "CPU", lambda x: None)
    mode = FakeTensorMode()
    made = body(mode, body_ops.twice_into.default, (mode.from_tensor(SAMPLE),), {}, Target("cpu"))
    assert called(made) == ["aten.mul.Tensor", "aten.copy_.default"]
    x = SAMPLE.clone()
    made(x)
    assert torch.equal(x, SAMPLE * 2)


# ---- grouped products alone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((4, 3), (3, 2)), ((2, 4, 3), (2, 3, 2)), ((4,), (1, 4, 2))])
def test_grouped_products_of_other_ranks_are_not_served(shapes):
    with pytest.raises(NoBody, match="an input of two dimensions and a weight of three"):
        _grouped(Target("cpu"), torch.zeros(shapes[0]), torch.zeros(shapes[1]), torch.tensor([1, 2]))


@pytest.mark.parametrize(
    ("x", "weight", "own"),
    [
        (torch.randn(4, 8).bfloat16(), torch.randn(2, 8, 8).bfloat16(), True),
        (torch.randn(4, 3).bfloat16(), torch.randn(2, 3, 8).bfloat16(), False),  # strides that 16 bytes do not divide
        (torch.randn(4, 8), torch.randn(2, 8, 8), False),  # another dtype
    ],
)
def test_the_kernel_is_called_where_it_takes_the_factors(x, weight, own, monkeypatch):
    calls = []
    kernel = aten._grouped_mm.default
    monkeypatch.setattr(
        "aotair.lower.bodies._aten",
        type("Ops", (), {"_grouped_mm": type("Op", (), {"default": lambda *args: calls.append(1) or kernel(*args)})}),
    )
    ends = torch.tensor([1, 4], dtype=torch.int32)
    got = _grouped(Target("cuda"), x, weight, ends)
    want = torch.cat([x[:1] @ weight[0], x[1:] @ weight[1]])
    torch.testing.assert_close(got, want)
    assert bool(calls) == own


# ---- who defines an op -----------------------------------------------------------------------------------------------


def test_the_formats_own_namespaces_need_no_package():
    assert defining_packages(["aten::add.Tensor", "npu::npu_rms_norm", "air::scope_enter"]) == {}
    assert defining_packages([]) == {}


def test_a_package_is_known_by_the_module_that_registered_the_op():
    @torch.library.custom_op("aotairowned::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found = defining_packages(["zzz::op", "aotairowned::double", "aotairowned::double.default", "aten::exp"])
    package = double._init_fn.__module__.partition(".")[0]
    assert found == {"aotairowned": package, "zzz": "what defines zzz::"} and list(found) == ["aotairowned", "zzz"]
