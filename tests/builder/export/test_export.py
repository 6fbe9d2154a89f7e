"""One graph of a model with symbolic sizes: what its placeholders are, what it returns, and why others are refused."""

import dataclasses

import pytest
import torch
from exports import entry_of, exported, job_for, model_of, shaped
from graphs import targets

from aotair.errors import ExportError, ModelError, SizesError, UnsupportedError
from aotair.export.export import export, export_at
from aotair.export.exported import Exported
from aotair.graph.show import show


def test_inputs_are_classified_and_mutations_are_epilogues(golden_text):
    _, counter = exported("counter")
    assert [state.name for state in counter.states.values()] == ["count"]
    assert not counter.constants
    golden_text("counter_export.txt", show(counter.module))
    _, cache = exported("cache")
    assert not cache.states and not cache.constants
    assert list(cache.inputs) == ["x", "cache", "position"]
    golden_text("cache_export.txt", show(cache.module))
    _, linear = exported("linear")
    assert {c.name for c in linear.constants.values()} == {"linear.weight", "linear.bias"}


def test_composites_with_kernels_stay_whole():
    _, result = exported("encoder")
    targets = {str(node.target) for node in result.module.graph.nodes}
    whole = {"linear", "layer_norm", "gelu", "scaled_dot_product_attention", "embedding"}
    assert {f"aten.{name}.default" for name in whole} <= targets


# ---- one graph for all buckets ---------------------------------------------------------------------------------------

ROWS = shaped("n", 3)
BUCKETS = {"n": [2, 5]}


def answers(found: Exported, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the graph gives for inputs by name."""
    held = {place: constant.tensor.clone() for place, constant in {**found.constants, **found.states}.items()}
    held |= {placeholder: inputs[name] for name, placeholder in found.inputs.items()}
    return list(found.module(*(held[node.name] for node in found.module.graph.find_nodes(op="placeholder"))))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_graph_answers_as_the_model_for_all_sizes(size):
    model = model_of(lambda self, x: (x @ self.w, x.softmax(0)), w=torch.randn(3, 2))
    found = export(model, entry_of(model, {"x": ROWS}, BUCKETS))
    x = torch.randn(size, 3)
    for mine, theirs in zip(answers(found, {"x": x}), model(x), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_sizes_are_symbols_in_the_graph():
    model = model_of(lambda self, x: x + 1)
    found = export(model, entry_of(model, {"x": ROWS}, BUCKETS))
    rows, columns = found.placeholder("x").meta["val"].shape
    assert isinstance(rows, torch.SymInt) and columns == 3


def test_the_graph_says_whose_it_is():
    def forward(self, x, scale=2.0, name="a", other=None):
        return x * scale

    model = model_of(forward)
    found = export(model, entry_of(model, {"x": ROWS}, BUCKETS))
    assert (found.entry, found.buckets, found.why) == ("forward", (), "")
    assert dict(found.defaults) == {"scale": 2.0, "name": "a", "other": None}


def test_a_method_of_another_name_is_exported():
    class Model(torch.nn.Module):
        def forward(self, x):
            raise AssertionError("not this one")

        def encode(self, x):
            return x * 3

    model = Model()
    job = job_for(model, {}, entry_points={"encode": {"method": "encode", "inputs": {"x": ROWS}, "buckets": BUCKETS}})
    x = torch.randn(4, 3)
    found = export(model, job.entries[0])
    assert found.entry == "encode" and torch.equal(answers(found, {"x": x})[0], x * 3)


@pytest.mark.parametrize(
    ("forward", "inputs", "constants"),
    [
        (lambda self, *args: args[0] - args[1], {"args.0": ROWS, "args.1": ROWS}, {}),
        (lambda self, batch: batch["a"] - batch["b"], {"batch.a": ROWS, "batch.b": ROWS}, {}),
        (lambda self, a, b, sign: a - b * sign, {"a": ROWS, "b": ROWS}, {"sign": 1}),
    ],
    ids=["args", "a dict", "a constant"],
)
def test_inputs_may_be_parts_of_arguments(forward, inputs, constants):
    model = model_of(forward)
    before = dict(model.__dict__)
    found = export(model, entry_of(model, inputs, BUCKETS, constants=constants))
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(answers(found, dict(zip(inputs, (a, b))))[0], a - b)
    assert model.__dict__ == before, "the model is as it was"


def test_a_forward_of_the_objects_own_is_put_back():
    model = model_of(lambda self, batch: batch["a"])
    own = model.forward = lambda batch: batch["a"] * 2
    found = export(model, entry_of(model, {"batch.a": ROWS}, BUCKETS))
    assert model.__dict__["forward"] is own
    assert torch.equal(answers(found, {"batch.a": torch.ones(2, 3)})[0], torch.full((2, 3), 2.0))


def test_a_model_that_fails_is_put_back_too():
    def forward(self, batch):
        raise OSError("no")

    model = model_of(forward)
    with pytest.raises(ExportError):
        export(model, entry_of(model, {"batch.a": ROWS}, BUCKETS))
    assert "forward" not in model.__dict__


def test_composites_without_kernels_are_taken_apart():
    model = model_of(lambda self, x: torch.nn.functional.layer_norm(torch.hstack([x, x]), (6,)))
    found = export(model, entry_of(model, {"x": ROWS}, BUCKETS))
    assert targets(found.module) == ["aten.cat.default", "aten.layer_norm.default"]


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_a_model_that_takes_other_sizes_alone_is_refused_as_such():
    model = model_of(lambda self, x: x.view(2, -1, 3))
    with pytest.raises(SizesError, match="does not allow these sizes"):
        export(model, entry_of(model, {"x": ROWS}, {"n": [4, 8]}))


@dataclasses.dataclass
class Positive:
    a: torch.Tensor

    def __post_init__(self):
        raise ValueError("nothing is good enough")


def test_arguments_that_cannot_be_made_are_the_recipes_fault():
    def forward(self, batch: Positive):
        return batch.a

    model = model_of(forward)
    with pytest.raises(ModelError, match="nothing is good enough"):
        export(model, entry_of(model, {"batch.a": ROWS}, BUCKETS))


def test_what_is_unsupported_while_it_is_traced_has_its_line():
    def forward(self, x):
        raise UnsupportedError("a thing", expected="another", got="this", fix="do so")

    model = model_of(forward)
    with pytest.raises(UnsupportedError, match=r"a thing \(at test_export.py:\d+, in forward\)") as caught:
        export(model, entry_of(model, {"x": ROWS}, BUCKETS))
    error = caught.value
    assert (error.expected, error.got, error.fix) == ("another", "this", "do so") and error.where.startswith("recipe")


def test_writes_into_memory_that_tensors_share_are_refused_by_both_names():
    def forward(self, x):
        self.whole.add_(1)
        return x + self.part

    whole = torch.zeros(4, 3)
    model = model_of(forward, whole=whole, part=whole[1])
    with pytest.raises(UnsupportedError, match="whose memory"):
        export(model, entry_of(model, {"x": ROWS}, BUCKETS))


def test_a_sparse_tensor_is_refused_by_its_name():
    model = model_of(lambda self, x: self.table @ x)
    model.table = torch.eye(3).to_sparse()
    with pytest.raises((UnsupportedError, ModelError), match="table"):
        export(model, entry_of(model, {"x": shaped(3, 3)}))


# ---- at one bucket ---------------------------------------------------------------------------------------------------


def test_at_a_bucket_the_graph_assumes_what_it_finds():
    model = model_of(lambda self, x: x.view(2, -1, 3))
    found, assumptions = export_at(model, entry_of(model, {"x": ROWS}, {"n": [2, 4, 5]}), (4,))
    assert (assumptions.why_not((4,)) is None and assumptions.why_not((2,)) is not None) or assumptions.why_not((5,))
    assert torch.equal(answers(found, {"x": torch.ones(4, 3)})[0], torch.ones(2, 2, 3))


def test_a_model_that_looks_sizes_up_gets_a_graph_of_one_size():
    model = model_of(lambda self, x: x * {2: 1.0, 5: 3.0}[x.shape[0]])
    found, assumptions = export_at(model, entry_of(model, {"x": ROWS}, BUCKETS), (5,))
    assert assumptions.why_not((5,)) is None
    assert "n = 5" in str(assumptions.why_not((2,)))
    assert torch.equal(answers(found, {"x": torch.ones(5, 3)})[0], torch.full((5, 3), 3.0))


def test_a_graph_that_suits_all_assumes_nothing_that_a_bucket_lacks():
    model = model_of(lambda self, x: x + 1)
    _, assumptions = export_at(model, entry_of(model, {"x": ROWS}, BUCKETS), (5,))
    assert all(assumptions.why_not((n,)) is None for n in (2, 3, 5))
