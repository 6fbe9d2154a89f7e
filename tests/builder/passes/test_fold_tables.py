"""What depends on sizes and constants alone leaves a bucket's graph, also where calls write over parts of it."""

import pytest
import safetensors.torch
import torch
from graphs import answers, run_pass, targets, trace
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair
from aotair.graph.derived import derivations, mark_constant, mark_fixed
from aotair.graph.fake import recompute
from aotair.graph.inplace import inplace_overload, plain_overload
from aotair.graph.show import show
from aotair.passes import fold_tables, streams
from aotair.recipe.config import CompilerConfig

aten = torch.ops.aten
X, F = torch.randn(6, 4), torch.rand(4)


def folded(function, *tensors: torch.Tensor, mark=mark_fixed, limit: int | None = None):
    """The graph after the pass, with the last input as a constant, and what the pass said."""
    module = trace(function, *tensors)
    mark(module.graph.find_nodes(op="placeholder")[-1])
    return module, run_pass(fold_tables, module, limit)


def same(function, *tensors: torch.Tensor) -> torch.fx.GraphModule:
    """After the pass, the graph answers as before, with what its derivations make; results share the memory that they
    seem to."""
    want = answers(trace(function, *tensors), tensors)
    module, _ = folded(function, *tensors)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    values = dict(zip(names, (tensor.clone() for tensor in tensors)))
    for placeholder, derivation, number in derivations(module.graph):
        given_to = [values[node.name] for node in derivation.graph.find_nodes(op="placeholder")]
        values[placeholder.name] = torch.fx.GraphModule({}, derivation.graph)(*given_to)[number].clone()
    tables = {name: value.clone() for name, value in values.items() if name not in names[: len(tensors)]}
    got = module(*[values[name] for name in names])
    for one, wanted in zip(got, want):
        assert torch.equal(one, wanted), show(module)
    for name, value in tables.items():
        assert torch.equal(values[name], value), f"{name} was written into\n{show(module)}"
    return module


def _rotary(x, f):
    """As reinplacing leaves it: the sine is written over what the cosine was made of."""
    angles = aten.mul.Tensor(aten.unsqueeze.default(aten.arange.start_step(0, 6, 1), 1), f)
    cosine = aten.mul_.Tensor(aten.cos.default(angles), 2.0)
    sine = aten.sin_.default(angles)
    return (aten.add_.Tensor(x * cosine, sine),)


def _mask(x, f):
    row = aten.arange.start_step(0, 6, 1)
    apart = aten.abs_.default(aten.sub.Tensor(aten.unsqueeze.default(row, 1), aten.arange.start_step(0, 4, 1)))
    return (x.masked_fill(aten.le.Scalar(apart, 2), 0.0),)


def _over_a_table(x, f):
    """The last product is written over the table: it becomes one with memory of its own."""
    table = aten.cos.default(aten.mul.Tensor(f, 2.0))
    return (aten.mul_.Tensor(aten.mul.Tensor(x, 1.0), table), aten.mul_.Tensor(table, x[0]))


def _read_first(x, f):
    """A table is read, then another one is written over it."""
    table = aten.add.Tensor(f, 1.0)
    before = x * table
    return (before, x * aten.exp_.default(table))


def _of_another(x, f):
    table = aten.mul.Tensor(f, 2.0)
    return (x * table, x * aten.cos.default(table))


@pytest.mark.parametrize(
    ("function", "count", "left"),
    [
        (_rotary, 2, ["mul.Tensor", "add_.Tensor"]),
        (_mask, 1, ["masked_fill.Scalar"]),
        (_over_a_table, 1, ["mul.Tensor", "mul_.Tensor", "select.int", "mul.Tensor"]),
        (_of_another, 2, ["mul.Tensor", "mul.Tensor"]),
        (_read_first, 2, ["mul.Tensor", "mul.Tensor"]),
    ],
)
def test_tables_are_made_before_any_call(function, count: int, left: list[str]):
    module = same(function, X, F)
    assert len(list(derivations(module.graph))) == count, show(module)
    assert targets(module) == [f"aten.{name}" for name in left]


def _into_a_part(x, f):
    """A row is written, and read as a part of the whole: not a call whose result alone is read."""
    table = aten.mul.Tensor(aten.ones.default([6, 4]), f)
    row = aten.select.int(table, 0, 0)
    aten.exp_.default(row)
    return (x + table,)


def _seen_before(x, f):
    """A view that was taken before is read after the write."""
    table = aten.mul.Tensor(f, 2.0)
    seen = aten.view.default(table, [2, 2])
    written = aten.exp_.default(table)
    return (x * written, seen * x[:2, :2])


def _large(x, f):
    return (x.sum() + aten.cos_.default(aten.mul.Tensor(aten.unsqueeze.default(f, 1), aten.ones.default([1 << 15]))),)


@pytest.mark.parametrize("function", [_into_a_part, _seen_before, _large])
def test_it_leaves(function):
    before = trace(function, X, F)
    module = same(function, X, F)
    assert not list(derivations(module.graph)), show(module)
    assert targets(module) == targets(before), "and calls write over what they wrote over"


def test_what_callers_get_is_made_in_each_call():
    module = same(lambda x, f: (x, aten.cos_.default(aten.mul.Tensor(f, 2.0))), X, F)
    assert targets(module) == ["aten.cos.default"], "they may write into it"


def test_several_streams_are_left_alone():
    def function(x, f):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        table = aten.cos.default(f)
        torch.ops.air.scope_exit()
        return (x * table,)

    module = trace(function, X, F)
    mark_fixed(module.graph.find_nodes(op="placeholder")[-1])
    run_pass(streams, module)
    assert run_pass(fold_tables, module).count == 0 and "aten.cos.default" in targets(module)


def test_one_of_several_results_may_stay():
    def function(x, f):
        values, order = aten.sort.default(aten.mul.Tensor(f, 2.0))
        return (x * order, values)

    called_for = targets(same(function, X, F))
    assert "aten.sort.default" in called_for and called_for.count("aten.mul.Tensor") == 1


def test_what_is_read_by_strides_of_its_own_lies_as_it_did():
    def function(x, f):
        table = aten.t.default(aten.mul.Tensor(aten.unsqueeze.default(f, 1), aten.arange.start_step(0, 6, 1)))
        turned = aten.cos.default(table)
        return (x + turned, x[:4] * aten.as_strided.default(turned, [4, 4], [1, 6]))

    assert "aten.cos.default" in targets(same(function, X, F))


def test_a_result_that_would_be_promoted_is_written_over():
    def function(x, f):
        table = aten._to_copy.default(f, dtype=torch.float16)
        return (x * aten.mul_.Tensor(table, aten.mul.Tensor(f, 3.0)),)

    assert "aten.mul_.Tensor" in targets(same(function, X, F))


def test_all_tables_of_a_bucket_have_a_bound():
    def function(x, f):
        parts = [aten.mul.Tensor(aten.ones.default([7, 1024]), aten.sum.default(f) + n) for n in range(4)]
        return tuple(x.sum() * part for part in parts)

    module, edits = folded(function, X, F)
    tables = [node for node, _, _ in derivations(module.graph) if node.meta["val"].numel() > 1]
    assert len(tables) == 2 and "more than 65,536 bytes" in edits.accounts[0].text
    same(function, X, F)


def test_a_large_table_is_said_to_be_one():
    _, edits = folded(_large, X, F)
    assert edits.count == 0
    assert edits.accounts and all("524,288 bytes" in account.text for account in edits.accounts)


def test_weights_and_states_are_no_tables():
    module, edits = folded(_rotary, X, F, mark=mark_constant)
    assert edits.count == 0 and not list(derivations(module.graph))


def test_as_many_as_it_may():
    module, edits = folded(_read_first, X, F, limit=0)
    assert edits.count == 0 and targets(module) == targets(trace(_read_first, X, F))


def test_ops_have_their_plain_overloads():
    for op in (aten.add.Tensor, aten.mul.Scalar, aten.cos.default, aten.bitwise_and.Tensor):
        assert plain_overload(inplace_overload(op)) is op
    for op in (aten.add.Tensor, aten.squeeze_.dim, aten.detach_.default, len, "call"):
        assert plain_overload(op) is None


_STEPS = ("cos", "sin_", "mul_", "add", "view", "times x", "x over it")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 99)), min_size=1, max_size=9))
def test_random_chains_of_writes_have_the_same_numbers(steps: list[tuple[str, int]]):
    """Tables, views of them and writes into them, in any order, whether reinplacing would make it so or not."""

    def function(x, f):
        tables, results = [aten.mul.Tensor(f, 0.5)], [x]
        for step, at in steps:
            table = tables[at % len(tables)]
            if step in ("cos", "sin_"):
                tables.append((aten.cos if step == "cos" else aten.sin_).default(table))
            elif step in ("mul_", "add"):
                tables.append((aten.mul_ if step == "mul_" else aten.add).Tensor(table, 1.5))
            elif step == "view":
                tables.append(aten.view.default(table, [4]))
            else:
                results.append(x * table if step == "times x" else aten.mul_.Tensor(table, x[0]))
        return tuple(result.clone() for result in results)

    module = same(function, X, F)
    kept = {node.name: node.meta["val"] for node in module.graph.nodes if node.op == "call_function"}
    recompute(module.graph)
    for node in module.graph.nodes:
        if node.name in kept:
            assert node.meta["val"].shape == kept[node.name].shape


class _Causal(torch.nn.Module):
    """Rotary tables follow from n alone; the mask from both sizes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rates", torch.rand(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1])
        seen = at[:, None] + 0 * torch.arange(x.shape[0])[:, None, None] >= at
        weights = torch.einsum("bnd,bmd->bnm", x, x).masked_fill(~seen, -1e4).softmax(-1)
        return weights @ (x * torch.outer(at.float(), self.rates).cos())


def test_tables_that_are_equal_are_stored_once(tmp_path):
    x = {"shape": ["b", "n", 8], "dtype": "float32"}
    model, buckets = _Causal().eval(), {"b": [2, 3, 4], "n": [4, 6]}
    loaded = aotair.load(aotair.build(model=model, out=tmp_path / "x.aotair", inputs={"x": x}, buckets=buckets))
    tables = [(item.name, item.shape) for item in loaded.program.constants if item.kind == "derived"]
    assert [shape for name, shape in tables if name.startswith("rates:cos")] == [(4, 8), (6, 8)]
    assert not any("rates" in name for name, shape in tables if len(shape) == 3), "a mask follows from no buffer"
    for sizes in ((2, 4), (3, 6), (4, 4)):
        given_to = torch.randn(*sizes, 8)
        assert torch.allclose(loaded(given_to), model(given_to), atol=1e-5)


class _Rotated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("rates", 1.0 / 10 ** torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[0]).float(), self.rates)
        angles = torch.cat([angles, angles], -1)
        return self.layer(x) * angles.cos() + x * angles.sin()


_CALLS = {"aten::arange.start_out", "aten::cos.out", "aten::sin_"}


def test_buckets_have_tables_of_their_own(tmp_path):
    torch.manual_seed(0)
    model = _Rotated().eval()
    recipe = {"inputs": {"x": {"shape": ["n", 8], "dtype": "float32"}}, "buckets": {"n": [3, 7]}}
    for fold in (True, False):
        config = CompilerConfig()
        config.experimental_config.fold_constants = fold
        aotair.build(model=model, out=tmp_path / f"{fold}.aotair", config=config, **recipe)
    whole, plain = aotair.load(tmp_path / "True.aotair"), aotair.load(tmp_path / "False.aotair")
    assert not _CALLS & called(whole) and called(plain) >= _CALLS
    shapes = sorted(item.shape for item in whole.program.constants if item.kind == "derived")
    assert shapes == [(3, 8), (3, 8), (7, 8), (7, 8)]
    other = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(other, tmp_path / "other.safetensors")
    _answers_as(whole, model)
    whole.load_weights(tmp_path / "other.safetensors")
    model.load_state_dict(other)
    _answers_as(whole, model)


def called(loaded) -> set[str]:
    """The ops that calls run."""
    program = loaded.program
    numbers = {number for entry in program.entry_points for bucket in entry.buckets for number in bucket.code}
    return {program.ops[program.instructions[number].op].name for number in numbers}


def _answers_as(loaded, model: torch.nn.Module) -> None:
    for size in (3, 7):
        x = torch.randn(size, 8)
        assert torch.allclose(loaded(x), model(x), atol=1e-5)
