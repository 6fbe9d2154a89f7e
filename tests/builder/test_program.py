"""From exported graphs to a program: what its entry points, inputs, outputs and requirements are."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from exports import built_of, job_for, model_of, shaped

import aotair
from aotair import program
from aotair.errors import InternalError, RecipeError, UnsupportedError
from aotair.export.export import export
from aotair.export.identity import unified
from aotair.export.variants import export_buckets
from aotair.passes.observer import Observer
from aotair.program import ALIGNMENT, TORCH_MIN, build_program
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Dim, Input, Options, Output, Program, Requirements, Reserve, Space, Tolerance


def test_unused_weights_are_not_stored(tmp_path: Path):
    source = tmp_path / "m.py"
    source.write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(100, 100)\n"
        "    def forward(self, x):\n"
        "        return self.used(x)\n"
    )
    x = {"shape": [1, 2], "dtype": "float32"}
    out = aotair.build({"name": "m", "model": {"factory": f"{source}:M"}, "inputs": {"x": x}}, tmp_path / "m.aotair")
    assert set(safetensors.torch.load_file(out / "weights.safetensors")) == {"used.weight", "used.bias"}


def test_the_largest_bucket_is_captured_first(built):
    (entry,) = read_program(built("encoder")).entry_points
    heights = [entry.buckets[i].height for i in entry.capture_order]
    assert heights == sorted(heights, reverse=True)


# ---- alone -----------------------------------------------------------------------------------------------------------

ROWS = shaped("n", 3)
DOUBLE = model_of(lambda self, x: x * 2)


def program_of(model=DOUBLE, inputs: dict | None = None, buckets=None, **parts) -> Program:
    return built_of(
        model, {"x": ROWS} if inputs is None else inputs, {"n": [2, 4]} if buckets is None else buckets, **parts
    ).program


def test_a_program_says_whose_it_is_and_what_it_needs():
    found = program_of(name="mine", verify={"atol": 0.5, "rtol": 0.25})
    assert (found.name, found.tolerance, found.alignment, found.files) == ("mine", Tolerance(0.5, 0.25), ALIGNMENT, ())
    torch_built = torch.__version__.split("+")[0]
    assert found.requirements == Requirements(TORCH_MIN, torch_built, "cpu")
    assert found.options == Options(True, False, False) and found.reserve == Reserve(0, 0)
    assert found.arena == max(bucket.height for bucket in found.entry_points[0].buckets)


@pytest.mark.parametrize(
    ("target", "requirements", "reserve"),
    [
        ({"memory_budget": 1000}, {"memory_budget": 1000}, Reserve()),
        ({"memory_budget": 0.5}, {"memory_share": 0.5}, Reserve()),
        (
            {"device": "npu", "soc": "Ascend", "torch_npu": "2.13"},
            {"device": "npu", "soc": "Ascend", "vendor_min": "2.13"},
            Reserve(),
        ),
        ({"device": "cuda"}, {"device": "cuda"}, Reserve(32 << 20)),
        ({"device": "cuda", "workspace": 0, "reserve": 7}, {"device": "cuda"}, Reserve(0, 7)),
        ({"workspace": "1KiB"}, {}, Reserve(1024)),
        ({"device": "npu", "hccl_buffer": "2MiB"}, {"device": "npu"}, Reserve(0, 0, 2 << 20)),
    ],
)
def test_what_the_recipe_asks_of_a_node_is_in_it(target, requirements, reserve):
    found = program_of(target=target)
    assert found.requirements == replace(program_of().requirements, **requirements) and found.reserve == reserve


def test_options_are_those_of_the_recipe():
    aclgraph = {"clone_input": False, "enable_output_clone": True, "disable_mempool_reuse_in_same_fx": True}
    assert program_of(config={"debug": {"aclgraph": aclgraph}}).options == Options(False, True, True)


def test_inputs_are_described_as_the_recipe_has_them():
    inputs = {
        "x": ROWS | {"pad": "any"},
        "ids": shaped("n", 1, dtype="int64", range=[0, "n"], pad=0),
        "mask": shaped("n", 1, dtype="bool", mask="left", pad=False),
        "ones": shaped("n", 1, dtype="int32", mask="right", pad=0),
        "cache": shaped(5, 3, mutated=True),
    }

    def forward(self, x, ids, mask, ones, cache):
        cache.add_(1)
        return x * ids * mask * ones + cache[0]

    (entry,) = program_of(model_of(forward), inputs).entry_points
    assert entry.dims == (Dim("n", True, 0),)
    assert entry.inputs == (
        Input("x", "user", "float32", (("dim", 0), 3), "any", None),
        Input("ids", "user", "int64", (("dim", 0), 1), 0, (0.0, 4.0)),
        Input("mask", "user", "bool", (("dim", 0), 1), False, None),
        Input("ones", "user", "int32", (("dim", 0), 1), 0, (0.0, 2.0)),
        Input("cache", "mutated", "float32", (5, 3), None, None),
    )


def test_dimensions_that_are_not_padded_and_smallest_sizes_are_said():
    inputs = {"x": shaped("n", "m", pad={"n": 0})}
    (entry,) = program_of(inputs=inputs, buckets={"n": [4], "m": [3]}, dimensions={"n": {"min": 2}}).entry_points
    assert entry.dims == (Dim("n", True, 2), Dim("m", False, 0))


def test_constants_of_the_recipe_and_defaults_of_the_method_are_in_it():
    def forward(self, x, scale, sign=True, name="a"):
        return x * scale

    (entry,) = program_of(model_of(forward), constants={"scale": 2.5}).entry_points
    assert entry.constants == (("scale", 2.5), ("sign", True), ("name", "a"))


@pytest.mark.parametrize(
    ("outputs", "cloned"),
    [
        ({}, [False, False]),
        ({0: {"clone": True}}, [True, False]),
        ({"b": {"clone": True}}, [False, True]),
        ({"a": {"clone": False}}, [False, False]),
    ],
)
def test_outputs_may_be_tensors_of_their_own(outputs, cloned):
    model = model_of(lambda self, x: {"a": x + 1, "b": x.to(torch.int64)})
    (entry,) = program_of(model, outputs=outputs).entry_points
    shape = (("dim", 0), 3)
    assert entry.outputs == (Output("float32", shape, cloned[0]), Output("int64", shape, cloned[1]))
    assert entry.structure == ("dict", ("a", "b"), ("tensor", 0), ("tensor", 1))


@pytest.mark.parametrize("key", [2, "c"])
def test_an_output_that_the_model_does_not_return_is_refused(key):
    model = model_of(lambda self, x: {"a": x + 1, "b": x * 2})
    with pytest.raises(RecipeError, match=f"outputs.{key}: the model does not return it") as caught:
        program_of(model, outputs={key: {"clone": True}})
    assert caught.value.expected == "a number below 2, or one of a, b" and caught.value.got == repr(key)


def test_the_largest_bucket_comes_first_and_equal_ones_in_order():
    (entry,) = program_of(buckets={"n": [2, 64, 65, 3]}).entry_points
    heights = [bucket.height for bucket in entry.buckets]
    assert [bucket.sizes for bucket in entry.buckets] == [(2,), (3,), (64,), (65,)]
    order = entry.capture_order
    assert sorted(order) == [0, 1, 2, 3] and [heights[i] for i in order] == sorted(heights, reverse=True)
    assert order.index(0) < order.index(1), "both take as much"


def test_buckets_are_heard_of_one_by_one():
    heard = []
    job = job_for(DOUBLE, {"x": ROWS}, {"n": [2, 4, 8]})
    build_program([export(DOUBLE, job.entries[0])], job, lambda done, total: heard.append((done, total)))
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_pictures_go_by_entry_point_and_bucket():
    built = built_of(DOUBLE, {"x": ROWS}, {"n": [2, 4]})
    assert list(built.pictures) == [("forward", (2,)), ("forward", (4,))]
    assert [shown.height for shown in built.pictures.values()] == [
        b.height for b in built.program.entry_points[0].buckets
    ]


def test_the_first_value_of_a_state_is_kept_aside():
    def forward(self, x):
        self.count.add_(1)
        return x + self.count

    model = model_of(forward, count=torch.full((3,), 7.0))
    built = built_of(model, {"x": ROWS}, {"n": [2]})
    model.count.zero_()
    (state,) = built.program.state
    assert state.name == "count" and torch.equal(built.weights["count"], torch.full((3,), 7.0))
    assert built.program.constants[state.constant].name == "count"


def test_names_of_a_checkpoint_that_nobody_reads_are_said():
    model = model_of(lambda self, x: x + self.used, used=torch.ones(3), unused=torch.zeros(3))
    built = built_of(model, {"x": ROWS}, {"n": [2]})
    assert built.program.unread == ("unused",) and list(built.weights) == ["used"]


def test_equal_weights_are_shared_where_the_recipe_says_so():
    model = model_of(lambda self, x: x * self.a + self.b, a=torch.ones(3), b=torch.ones(3))
    assert list(built_of(model, {"x": ROWS}, {"n": [2]}).weights) == ["a", "b"]
    shared = built_of(model, {"x": ROWS}, {"n": [2]}, model={"share_equal_weights": True})
    assert list(shared.weights) == ["a"]


def test_a_bucket_gets_the_graph_that_serves_it():
    model = model_of(lambda self, x: x * 2 if x.shape[0] > 3 else x - 1)
    job = job_for(model, {"x": ROWS}, {"n": [2, 4]})
    found = build_program(export_buckets(model, job.entries[0]), job, lambda *_: None).program
    names = [
        [found.ops[found.instructions[c].op].name for c in bucket.code] for bucket in found.entry_points[0].buckets
    ]
    assert names == [["aten::sub.out"], ["aten::mul.out"]]


def test_a_wrong_plan_is_our_fault(monkeypatch):
    monkeypatch.setattr(program, "violations", lambda *_: ["planted", "more"])
    with pytest.raises(InternalError, match=r"bucket n=2: the memory plan is wrong: planted$"):
        program_of()


def test_errors_of_a_bucket_say_which():
    model = model_of(lambda self, x: x.logcumsumexp(0))
    with pytest.raises(UnsupportedError) as caught:
        program_of(model, target={"device": "npu"})
    assert caught.value.where.endswith(": bucket n=2")
    with pytest.raises(UnsupportedError) as caught:
        program_of(model, {"x": shaped(2, 3)}, {}, target={"device": "npu"})
    assert caught.value.where.endswith(": bucket static")


def test_passes_over_buckets_are_observed_under_the_buckets_name(tmp_path):
    job = job_for(DOUBLE, {"x": ROWS}, {"n": [2]})
    observer = Observer(job.target)
    labels = []
    over = observer.over
    observer.over = lambda label: labels.append(label) or over(label)
    build_program([export(DOUBLE, job.entries[0])], job, lambda *_: None, observer)
    assert labels == ["n=2"]


# ---- several buckets, entry points and inputs ------------------------------------------------------------------------


def test_inputs_of_all_buckets_lie_in_one_place_where_that_costs_nothing():
    (entry,) = program_of(buckets={"n": [2, 30, 64]}).entry_points
    assert len({bucket.input_offsets for bucket in entry.buckets}) == 1
    assert all(bucket.height == bucket.lower_bound for bucket in entry.buckets)


def test_mutated_inputs_are_the_callers_and_have_no_copy():
    def forward(self, x, cache):
        cache.add_(x.sum(0))
        return x + cache

    (entry,) = program_of(model_of(forward), {"x": ROWS, "cache": shaped(3, mutated=True)}).entry_points
    for bucket in entry.buckets:
        assert bucket.input_offsets[0] >= 0 and bucket.input_offsets[1] == -1
        assert [bucket.tensors[number].space for number in bucket.inputs] == [Space.INPUT, Space.CALLER]


def test_an_input_that_is_returned_is_returned_from_its_copy():
    (entry,) = program_of(model_of(lambda self, x: (x, x + 1))).entry_points
    for bucket in entry.buckets:
        assert bucket.tensors[bucket.outputs[0]].space == Space.INPUT


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(3))
        self.register_buffer("scale", torch.full((3,), 2.0))

    def write(self, x):
        self.memory.copy_(x.sum(0) * self.scale)
        return x + 1

    def read(self, x):
        return x + self.memory * self.scale


def test_entry_points_share_constants_states_and_instructions():
    points = {name: {"method": name, "inputs": {"x": ROWS}, "buckets": {"n": [2, 4]}} for name in ("write", "read")}
    job = job_for(Two(), {}, entry_points=points)
    model = Two()
    graphs = unified([export(model, one) for one in job.entries], ["write", "read"])
    found = build_program(graphs, job, lambda *_: None)
    assert [entry.name for entry in found.program.entry_points] == ["write", "read"]
    assert [state.name for state in found.program.state] == ["memory"] and set(found.weights) == {"memory", "scale"}
    heights = [bucket.height for entry in found.program.entry_points for bucket in entry.buckets]
    assert found.program.arena == max(heights) and len(found.pictures) == 4


def test_host_inputs_are_said_to_be_such():
    inputs = {
        "x": shaped("n", 1, 16),
        "lengths": shaped("n", dtype="int64", range=[1, 2], host=True),
    }

    def forward(self, x, lengths):
        return torch.ops.npu.npu_fused_infer_attention_score(x, x, x, actual_seq_lengths_kv=lengths)[0]

    (entry,) = program_of(model_of(forward), inputs, target={"device": "npu"}).entry_points
    assert [item.host for item in entry.inputs] == [False, True]
    assert all(bucket.updated == 1 for bucket in entry.buckets)


def test_the_same_job_makes_the_same_program():
    assert program_of() == program_of()
