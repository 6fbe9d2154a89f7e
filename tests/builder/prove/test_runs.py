"""One call of the original and one of the artifact: what they leave behind, also with sums in float64."""

import torch
from exports import entry_of, model_of, shaped

import aotair
from aotair.model.reference import Original
from aotair.model.wider import Wider
from aotair.prove.prove import on_host
from aotair.prove.runs import Runner
from aotair.recipe.job import job_of
from aotair.recipe.read import of_model
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.confine.op_table import Allowed


def adds_up(self, x):
    self.total.add_(x.sum(0))
    return x @ self.square + self.total


def test_both_calls_leave_the_same_behind_from_any_states(tmp_path):
    model = model_of(adds_up, total=torch.zeros(3), square=torch.eye(3))
    parts = {"inputs": {"x": shaped("n", 3)}, "buckets": {"n": [4]}}
    path = aotair.build(model=model, name="a", out=tmp_path / "a.aotair", **parts)
    job = job_of(of_model(model, parts), given=model).entries[0]
    with on_host(open_artifact(path), Allowed()) as served:
        runner = Runner(job, served.program.entry_points[0], served, Original(model, job))
        x, states = torch.randn(4, 3), {"total": torch.tensor([1.0, 2, 3])}
        for given in ({}, states):
            want, got = runner.reference({"x": x}, given), runner.replay({"x": x}, given)
            assert want.names == got.names == ["output"] and want.states.keys() == got.states.keys() == {"total"}
            total = given.get("total", torch.zeros(3)) + x.sum(0)
            for run in (want, got, want.moved()):
                torch.testing.assert_close([*run.tensors, run.states["total"].whole()], [x + total, total])
        assert want.moved() is want.moved()
        kept = got.shared(want)
        assert kept.tensors[0] is want.tensors[0]
        runner.replay({"x": x})
        torch.testing.assert_close(kept.states["total"].whole(), states["total"] + x.sum(0))
        assert torch.equal(model.total, x.sum(0)) or model.total.shape == (3,)


def test_sums_are_made_in_float64():
    x = torch.cat([torch.full((1,), 1e8), torch.ones(4096), torch.full((1,), -1e8)]).view(1, -1)
    with Wider():
        found = x @ torch.ones(x.shape[1], 1), x.sum(), torch.nn.functional.linear(x, torch.ones(2, x.shape[1]))
    assert all(tensor.dtype is torch.float32 and (tensor == 4096).all() for tensor in found)


def test_what_is_no_sum_is_as_it_was():
    model = model_of(lambda self, x: (x.cos() * x + x.relu(), x.max(0), x.sort(0), x.to(torch.int64)))
    x = torch.randn(5, 6)
    plain = model(x)
    with Wider():
        wide = model(x)
    assert torch.equal(plain[0], wide[0]) and torch.equal(plain[3], wide[3])
    assert all(torch.equal(a, b) for n in (1, 2) for a, b in zip(plain[n], wide[n]))


def test_a_call_in_float64_leaves_the_model_as_it_was():
    def forward(self, x):
        self.cache.add_(x.sum(0))
        return torch.nn.functional.layer_norm(x + self.cache, (3,))

    model = model_of(forward, cache=torch.zeros(3))
    original = Original(model, entry_of(model, {"x": shaped(4, 3)}))
    x = torch.randn(4, 3)
    first = original({"x": x})
    with Wider():
        original({"x": x})
    assert all(torch.equal(a, b) for a, b in zip(first, original({"x": x})))


def test_buffers_that_a_call_is_given_no_states_for_have_their_first_values():
    def forward(self, x):
        self.cache.add_(x)
        self.twin.add_(1)
        self.steps.add_(1)
        self.count = self.count + 1
        return self.cache + self.twin + self.count + self.steps

    memory = torch.zeros(3)
    model = model_of(forward, cache=memory, twin=memory.view(3), count=torch.zeros(3), steps=torch.zeros(3))
    original, x = Original(model, entry_of(model, {"x": shaped(3)})), torch.ones(3)
    for _ in range(2):
        assert torch.equal(original({"x": x})[0], torch.full((3,), 6.0))
        assert torch.equal(original({"x": x}, {"cache": torch.full((3,), 10.0)})[0], torch.full((3,), 26.0))
