"""Every bucket against the original model: what is recorded, and what a wrong bucket or a padding that shows says."""

import pytest
import safetensors.torch
import torch
from cases import RECIPES
from exports import job_for, model_of, shaped

import aotair
from aotair import pack
from aotair.errors import ProofError
from aotair.export.export import export
from aotair.pack import lay_down
from aotair.program import build_program
from aotair.prove.prove import Proved, _Prover, _sample, on_host, prove
from aotair.prove.runs import Runner
from aotair_runtime.artifact.open import Artifact, open_artifact, read_program
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import NamespaceError
from aotair_runtime.format.schema import Proof
from aotair_runtime.format.text import summary
from aotair_runtime.weights.golden import replay_golden


def test_what_was_proved_is_recorded(built):
    (entry,) = read_program(built("encoder")).entry_points
    for bucket in entry.buckets:
        assert bucket.proof.max_abs_error <= 1e-5
        assert bucket.proof.padding or bucket.sizes == (1, 1)
    runs = [run for bucket in entry.buckets for run in bucket.proof.padding]
    assert {run.poison.split("=")[0] for run in runs} == {"ids"}
    poisons = {run.poison.partition("; real values: ")[::2] for run in runs}
    assert {poison for poison, _ in poisons} == {"ids=random", "ids=49", "ids=0"}
    assert {words for _, words in poisons} == {
        "",
        "ids all the least, mask all but the pad value",
        "ids all the greatest",
    }
    assert all(run.max_abs_error <= 1e-5 for run in runs)
    linear = [run for b in read_program(built("linear")).entry_points[0].buckets for run in b.proof.padding]
    assert {run.poison.partition(";")[0] for run in linear} == {"x=nan", "x=inf", "x=-inf", "x=1e+30"}
    assert all(run.identical for run in linear)


def test_what_is_proved_is_what_was_written(tmp_path, monkeypatch):
    """A fault that only the file has."""
    save = pack.safetensors.torch.save_file
    monkeypatch.setattr(
        pack.safetensors.torch, "save_file", lambda tensors, file: save({n: t * 2 for n, t in tensors.items()}, file)
    )
    with pytest.raises(ProofError, match="is not the original model's"):
        aotair.build(RECIPES["linear"], tmp_path / "a.aotair")
    assert not list(tmp_path.iterdir())


# ---- alone: a small artifact and a model that is another -------------------------------------------------------------

ROWS = shaped("n", 3)


def laid(model, folder, inputs=None, buckets=None, **parts):
    """A model's artifact as it is before the proof, and the job."""
    given = {"x": ROWS} if inputs is None else inputs
    buckets = {"n": [2, 4]} if buckets is None else buckets
    job = job_for(model, given, buckets, **parts)
    folder.mkdir(exist_ok=True)
    return lay_down(build_program([export(model, job.entries[0])], job, lambda *_: None), folder), job


def proved(model, folder, inputs=None, buckets=None, other=None, **parts) -> Proved:
    artifact, job = laid(model, folder, inputs, buckets, **parts)
    return prove(artifact, other or model, job, lambda *_: None)


def refused(*args, **parts) -> ProofError:
    with pytest.raises(ProofError) as caught:
        proved(*args, **parts)
    return caught.value


DOUBLE = model_of(lambda self, x: x * 2)
ALMOST = model_of(lambda self, x: x * 2 + 1e-3)


def test_a_right_program_has_a_proof_for_each_bucket(tmp_path):
    heard = []
    artifact, job = laid(DOUBLE, tmp_path)
    found = prove(artifact, DOUBLE, job, lambda done, total: heard.append((done, total)))
    (entry,) = found.program.entry_points
    assert [bucket.proof for bucket in entry.buckets] == [Proof(0.0, ()), Proof(0.0, ())]
    assert heard == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)], "as built, then in life"


def test_golden_tensors_are_the_originals_inputs_and_outputs(tmp_path):
    golden = proved(DOUBLE, tmp_path).golden
    assert set(golden) == {f"forward.{number}.{side}" for number in (0, 1) for side in ("in.x", "out.0")}
    for number, size in ((0, 2), (1, 4)):
        x = golden[f"forward.{number}.in.x"]
        assert x.shape == (size, 3) and torch.equal(golden[f"forward.{number}.out.0"], x * 2)


def test_another_answer_is_refused_with_bucket_output_and_error(tmp_path):
    error = refused(DOUBLE, tmp_path, other=ALMOST)
    assert error.what == "bucket n=2: the output 'output' is not the original model's"
    assert error.expected.startswith("within 7.62939e-06 of the greatest number of its row, or within 32 times what")
    assert error.got.startswith("an error of 0.001 (") and error.got.endswith(" units in the last place)")
    assert "loosen verify" in error.fix and "aotair debug" in error.fix


def test_the_recipes_tolerance_is_what_counts(tmp_path):
    found = proved(DOUBLE, tmp_path, other=ALMOST, verify={"atol": 1e-2, "rtol": 0.0})
    (entry,) = found.program.entry_points
    assert all(0.9e-3 < bucket.proof.max_abs_error < 1.1e-3 for bucket in entry.buckets)
    golden = found.golden["forward.0.in.x"], found.golden["forward.0.out.0"]
    assert torch.equal(golden[1], golden[0] * 2 + 1e-3), "golden is what the original answers"


def test_outputs_are_named_as_the_model_returns_them(tmp_path):
    right = model_of(lambda self, x: {"a": x * 2, "b": [x, x + 1]})
    wrong = model_of(lambda self, x: {"a": x * 2, "b": [x, x + 2]})
    assert "the output 'b[1]' is not" in refused(right, tmp_path, other=wrong).what


def test_of_a_model_with_a_fast_path_the_fix_is_to_leave_it(tmp_path):
    def layer(**parts):
        return torch.nn.TransformerEncoderLayer(4, 1, 8, 0.0, batch_first=True, **parts).eval().requires_grad_(False)

    torch.manual_seed(0)
    mine, theirs = layer(), layer()
    error = refused(mine, tmp_path, {"src": shaped(1, "n", 4)}, other=theirs)
    assert "enable_nested_tensor=False" in error.fix


# ---- what is written -------------------------------------------------------------------------------------------------


def _adds_up(self, x):
    self.total.add_(x.sum(0))
    return x + self.total


def test_states_are_compared_after_the_call_and_from_random_values(tmp_path):
    model = model_of(_adds_up, total=torch.zeros(3))
    found = proved(model, tmp_path)
    assert any(name.startswith("forward.0.state.total") for name in found.golden)
    assert torch.equal(model.total, torch.zeros(3)) or model.total.shape == (3,)


def test_who_reads_a_cache_of_zeros_is_seen_from_random_states(tmp_path):
    """Both answer alike as long as the state is zero."""
    reads = model_of(lambda self, x: (self.cache.mul_(1), x + self.cache)[1], cache=torch.zeros(3))
    ignores = model_of(lambda self, x: (self.cache.mul_(1), x + 0)[1], cache=torch.zeros(3))
    error = refused(reads, tmp_path, other=ignores)
    assert "bucket n=2, from random states: the output 'output'" in error.what


def test_a_state_that_is_written_otherwise_is_seen(tmp_path):
    mine = model_of(lambda self, x: (self.total.add_(1), x + 0)[1], total=torch.zeros(3))
    other = model_of(lambda self, x: (self.total.add_(2), x + 0)[1], total=torch.zeros(3))
    assert "the output 'state total' is not" in refused(mine, tmp_path, other=other).what


def test_a_state_of_integers_is_left_as_it_was_built(tmp_path):
    model = model_of(lambda self, x: (self.steps.add_(1), x * self.steps)[1], steps=torch.zeros(1, dtype=torch.int64))
    assert proved(model, tmp_path).program.entry_points[0].buckets[0].proof == Proof(0.0, ())


def test_an_input_that_is_written_otherwise_is_seen(tmp_path):
    inputs = {"x": ROWS, "cache": ROWS | {"mutated": True}}
    mine = model_of(lambda self, x, cache: (cache.add_(x), x + 0)[1])
    other = model_of(lambda self, x, cache: (cache.add_(x * 2), x + 0)[1])
    assert "the output 'input cache' is not" in refused(mine, tmp_path, inputs, other=other).what
    golden = proved(mine, tmp_path / "b", inputs).golden
    before, x = golden["forward.0.in.cache"], golden["forward.0.in.x"]
    after = golden.get("forward.0.after.cache")
    assert after is not None and torch.equal(after, before + x)


def test_several_entry_points_are_proved_one_after_the_other(tmp_path):
    class Two(torch.nn.Module):
        def a(self, x):
            return x + 1

        def b(self, x):
            return x * 3

    points = {name: {"method": name, "inputs": {"x": ROWS}, "buckets": {"n": [2]}} for name in "ab"}
    job = job_for(Two(), {}, entry_points=points)
    built = build_program([export(Two(), one) for one in job.entries], job, lambda *_: None)
    found = prove(lay_down(built, tmp_path), Two(), job, lambda *_: None)
    assert set(found.golden) == {"a.0.in.x", "a.0.out.0", "b.0.in.x", "b.0.out.0"}
    assert [entry.buckets[0].proof for entry in found.program.entry_points] == [Proof(0.0, ())] * 2


# ---- padding ---------------------------------------------------------------------------------------------------------

ANY, ZERO = {"x": ROWS | {"pad": "any"}}, {"x": ROWS | {"pad": 0}}
MEAN = model_of(lambda self, x: x.mean(0))


def test_rows_that_do_not_meet_are_proved_with_every_poison(tmp_path):
    found = proved(DOUBLE, tmp_path, ANY)
    small, large = found.program.entry_points[0].buckets
    assert {run.sizes for run in small.proof.padding} == {(1,)} and {run.sizes for run in large.proof.padding} == {(3,)}
    poisons = {run.poison.partition(";")[0] for run in large.proof.padding}
    assert poisons == {"x=nan", "x=inf", "x=-inf", "x=1e+30"}
    assert all(run.identical and run.max_abs_error == 0.0 for run in large.proof.padding)


def test_a_bucket_that_no_call_is_smaller_than_has_no_runs(tmp_path):
    found = proved(DOUBLE, tmp_path, ZERO, {"n": [1]})
    assert found.program.entry_points[0].buckets[0].proof.padding == ()


def test_declared_values_are_said_as_such(tmp_path):
    total = model_of(lambda self, x: x.sum(0))
    runs = proved(total, tmp_path, ZERO).program.entry_points[0].buckets[1].proof.padding
    assert all(run.poison.startswith("the declared values") for run in runs)
    assert any("real values: x " in run.poison for run in runs)


def test_padding_that_shows_names_dimension_input_and_bucket(tmp_path):
    error = refused(MEAN, tmp_path, ZERO)
    assert error.what == "padding the dimension n of the input x changes the outputs"
    assert error.where.endswith("bucket n=2") and error.expected.startswith("the original's outputs at n=1, within")
    assert "output (error" in error.got and "x filled with 0" in error.got
    assert "declare the value that the model ignores" in error.fix


def test_a_poison_that_shows_is_named(tmp_path):
    summed = model_of(lambda self, x: x.sum(0))
    assert "x filled with nan" in refused(summed, tmp_path, ANY).got


def test_two_dimensions_are_padded_alone_and_together(tmp_path):
    inputs = {"x": shaped("n", "m", pad=0)}
    found = proved(model_of(lambda self, x: x * 3), tmp_path, inputs, {"n": [4], "m": [5]})
    sizes = [run.sizes for run in found.program.entry_points[0].buckets[0].proof.padding]
    assert sizes[:2] == [(1, 5), (4, 1)] and {(1, 1), (3, 4)} <= set(sizes)


def test_only_sizes_that_the_bucket_serves_are_tried(tmp_path):
    """Below the next smaller bucket another one would serve."""
    inputs = {"x": shaped("n", "m", pad=0)}
    found = proved(model_of(lambda self, x: x * 3), tmp_path, inputs, {"n": [2, 6], "m": [3]})
    large = found.program.entry_points[0].buckets[1]
    assert all(3 <= n <= 6 and 1 <= m <= 3 for n, m in (run.sizes for run in large.proof.padding))


def test_a_dimension_without_padding_keeps_its_size(tmp_path):
    inputs = {"x": shaped("n", "m", pad={"n": 0})}
    found = proved(model_of(lambda self, x: x.softmax(1)), tmp_path, inputs, {"n": [4], "m": [5]})
    assert {run.sizes[1] for run in found.program.entry_points[0].buckets[0].proof.padding} == {5}


def test_what_the_padded_output_keeps_is_cut_to_the_real_sizes(tmp_path):
    """The padded rows answer too; only the real ones are the outputs."""
    plus = model_of(lambda self, x: torch.cat([x + 1, x[:1]]))
    error = refused(plus, tmp_path, ZERO)
    assert "changes the outputs" in error.what, "the last row is no longer the last"


def test_an_original_that_fails_at_a_size_says_which(tmp_path):
    def forward(self, x):
        if not torch.compiler.is_compiling() and x.shape[0] == 1:
            raise ValueError("too few")
        return x * 2

    error = refused(DOUBLE, tmp_path, ZERO, other=model_of(forward))
    assert "fails at sizes that a bucket would serve: ValueError: too few" in error.what
    assert error.got == "x [1, 3]" and "dimensions: {NAME: {min: SIZE}}" in error.fix


def test_masks_of_another_input_are_padded_beside(tmp_path):
    inputs = {"x": shaped("n", 3, pad="any"), "mask": shaped("n", 1, dtype="int64", range=[0, 2], pad=0)}
    masked = model_of(lambda self, x, mask: torch.where(mask.bool(), x, 0.0).sum(0))
    runs = proved(masked, tmp_path, inputs).program.entry_points[0].buckets[1].proof.padding
    assert {run.poison.partition(";")[0] for run in runs} >= {"x=nan", "x=inf"}


# ---- samples ---------------------------------------------------------------------------------------------------------


def samples(tmp_path, *sizes: int, value: float = 5.0) -> dict:
    tensors = {f"{number}.x": torch.full((size, 3), value) for number, size in enumerate(sizes)}
    safetensors.torch.save_file(tensors, tmp_path / "s.safetensors")
    return {"verify": {"samples": str(tmp_path / "s.safetensors")}}


def test_samples_are_compared_and_padded_in_the_next_larger_bucket(tmp_path):
    found = proved(DOUBLE, tmp_path / "a", ANY, **samples(tmp_path, 2, 3, 4))
    small, large = found.program.entry_points[0].buckets
    texts = [(run.sizes, run.poison) for run in large.proof.padding if "verify.samples" in run.poison]
    assert {sizes for sizes, _ in texts} == {(2,), (3,)} and len(texts) == 2 * 4
    assert all("those of verify.samples, " in text for _, text in texts)
    assert not any("verify.samples" in run.poison for run in small.proof.padding)


def test_a_sample_that_is_answered_otherwise_is_refused_by_its_number(tmp_path):
    mine = model_of(lambda self, x: torch.where(x > 50, 0.0, x))
    other = model_of(lambda self, x: x + 0)
    inputs = {"x": ROWS | {"range": [0, 10]}}
    error = refused(mine, tmp_path / "a", inputs, other=other, **samples(tmp_path, 4, value=60.0))
    assert "verify.samples, 0: the output" in error.what


# ---- on the host -----------------------------------------------------------------------------------------------------


def test_an_artifact_for_another_device_is_proved_here(tmp_path):
    artifact, job = laid(DOUBLE, tmp_path, target={"device": "cuda", "memory_budget": 1})
    with on_host(artifact, Allowed()) as model:
        assert model.device.type == "cpu" and torch.equal(model(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert prove(artifact, DOUBLE, job, lambda *_: None).program.requirements.device == "cuda"


def test_the_ops_of_the_recipes_own_model_are_allowed(tmp_path):
    library = torch.library.Library("aotairprove", "FRAGMENT")
    library.define("triple(Tensor x) -> Tensor")
    library.impl("triple", lambda x: x * float(3), "CPU")
    library.impl("triple", torch.empty_like, "Meta")
    model = model_of(lambda self, x: torch.ops.aotairprove.triple(x))
    artifact, job = laid(model, tmp_path, target={"allow_namespaces": ["aotairprove"]})
    with on_host(artifact, job.target.allowed) as loaded:
        assert torch.equal(loaded(torch.ones(2, 3)), torch.full((2, 3), 3.0))
    with pytest.raises(NamespaceError, match="table does not hold"):
        on_host(artifact, Allowed())


class Nothing(torch.nn.Module):
    def forward(self, x):
        return x * float("nan")


def test_outputs_that_are_nan_throughout_prove_nothing(tmp_path):
    """A replay that computed anything at all would agree with them."""
    with pytest.raises(ProofError, match="NaN throughout"):
        aotair.build(
            model=Nothing(), inputs={"x": {"shape": [4], "dtype": "float32"}}, name="nothing", out=tmp_path / "n.aotair"
        )


# ---- which sizes are tried -------------------------------------------------------------------------------------------


def prover(tmp_path, inputs: dict, buckets: dict) -> _Prover:
    artifact, job = laid(model_of(lambda self, x: x * 3), tmp_path, inputs, buckets)
    (entry,) = artifact.program.entry_points
    with on_host(artifact, Allowed()) as model:
        return _Prover(Runner(job.entries[0], entry, model, None), False)


def test_a_sample_is_padded_in_the_smallest_bucket_that_is_larger(tmp_path):
    found = prover(tmp_path, {"x": shaped("n", "m", pad=0)}, {"n": [2, 4], "m": [3, 8]})
    sizes = [bucket.sizes for bucket in found._entry.buckets]
    assert sizes == [(2, 3), (2, 8), (4, 3), (4, 8)]
    larger = {given: found._larger(given) for given in ((1, 1), (2, 3), (2, 4), (3, 3), (4, 8), (5, 1))}
    assert larger == {(1, 1): 0, (2, 3): 2, (2, 4): 1, (3, 3): 2, (4, 8): None, (5, 1): None}


def test_a_dimension_that_is_never_padded_keeps_its_size_in_the_larger_bucket(tmp_path):
    found = prover(tmp_path, {"x": shaped("n", "m", pad={"n": 0})}, {"n": [2, 4], "m": [3, 8]})
    assert found._larger((2, 3)) == 2 and found._larger((2, 4)) is None


def test_there_are_as_many_runs_as_poisons_at_least(tmp_path):
    found = prover(tmp_path, {"x": ROWS | {"pad": "any"}}, {"n": [4]})
    (bucket,) = found._entry.buckets
    assert [sizes for sizes, _ in found._turns(0, bucket, 1)] == [(1,)] + [(3,), (1,)] * 3
    turns = list(found._turns(0, bucket, 12))
    assert len(turns) == 12 and [tilt for _, tilt in turns] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]


def test_a_sample_has_the_smallest_sizes(tmp_path):
    found = prover(tmp_path, {"x": ROWS | {"pad": "any"}}, {"n": [4]})
    (bucket,) = found._entry.buckets
    found._sampled = True
    assert list(found._turns(0, bucket, 1)) == [((3,), 5), ((1,), 6)]
    assert _sample([((1, 2), 0), ((1, 2), 1), ((3, 1), 2), ((3, 2), 3)]) == [((1, 2), 1), ((3, 2), 3)]
    assert _sample([((2,), 0)]) == [((2,), 0)] and _sample([]) == []


def test_a_poison_that_shows_where_the_runtimes_own_padding_does_not_is_seen(tmp_path):
    model = model_of(lambda self, x: x + x.isnan().any())
    assert "x filled with nan" in refused(model, tmp_path, ANY).got


# ---- a sample of runs ------------------------------------------------------------------------------------------------

SAMPLED = {"verify": {"level": "sampled"}}


def test_a_sample_calls_every_bucket_and_pads_the_smallest_and_the_largest(tmp_path):
    found = proved(DOUBLE, tmp_path, ANY, {"n": [2, 4, 8]}, **SAMPLED)
    (entry,) = found.program.entry_points
    assert [len(bucket.proof.padding) for bucket in entry.buckets] == [2, 0, 2]
    assert all(bucket.proof.sampled for bucket in entry.buckets)
    assert {f"forward.{number}.out.0" for number in range(3)} <= set(found.golden)
    assert "proved by a sample of runs" in summary(found.program)
    full = proved(DOUBLE, tmp_path / "full", ANY, {"n": [2, 4, 8]}).program
    assert not any(bucket.proof.sampled for bucket in full.entry_points[0].buckets)
    assert "sample" not in summary(full)


def test_a_sample_still_sees_another_answer_padding_and_who_reads_a_state(tmp_path):
    assert "is not the original model's" in refused(DOUBLE, tmp_path / "a", other=ALMOST, **SAMPLED).what
    assert "changes the outputs" in refused(MEAN, tmp_path / "b", ZERO, **SAMPLED).what
    reads = model_of(lambda self, x: (self.cache.mul_(1), x + self.cache)[1], cache=torch.zeros(3))
    ignores = model_of(lambda self, x: (self.cache.mul_(1), x + 0)[1], cache=torch.zeros(3))
    assert "from random states" in refused(reads, tmp_path / "c", other=ignores, **SAMPLED).what


# ---- scale -----------------------------------------------------------------------------------------------------------


def test_large_outputs_are_compared_in_their_scale(tmp_path):
    """The same error is nothing beside 39,000, and everything beside 1."""
    large = model_of(lambda self, x: x * 39_000)
    near = model_of(lambda self, x: x * 39_000 + 0.02)
    assert 0 < proved(large, tmp_path / "a", other=near).program.entry_points[0].buckets[0].proof.units < 64
    assert "is not the original model's" in refused(DOUBLE, tmp_path / "b", other=ALMOST).what
    assert "is not" in refused(large, tmp_path / "c", other=model_of(lambda self, x: x * 39_001)).what


def test_what_the_original_itself_moves_is_recorded_for_nodes(tmp_path):
    """The sum of large numbers that cancel each other, in two orders: neither is the truth."""
    numbers = torch.randn(2048, generator=torch.Generator().manual_seed(0)) * 30
    one = model_of(lambda self, x: (x[:, :1] * self.n).sum(1, True) + x, n=numbers - numbers.mean())
    halves = lambda x: x[:, :1024].sum(1, True) + x[:, 1024:].sum(1, True)  # noqa: E731
    two = model_of(lambda self, x: halves(x[:, :1] * self.n) + x, n=numbers - numbers.mean())
    found = proved(one, tmp_path, other=two)
    slack = [found.golden[name] for name in found.golden if name.endswith(".slack")]
    assert slack and all(tensor.dtype is torch.float64 and 0 < float(tensor) < 1e-2 for tensor in slack)
    with on_host(lay_golden(found, tmp_path), Allowed()) as model:
        assert all(result.within for result in replay_golden(model))


BF16_ROWS = {"shape": ["n", 64], "dtype": "bfloat16", "pad": 0}


def test_an_original_that_is_rounding_alone_proves_nothing(tmp_path):
    """What is 300 large on the way has steps of 2: the answers are no better than those of a model with steps of 4."""
    one, other = model_of(lambda self, x: x + 300 - 300), model_of(lambda self, x: x + 600 - 600)
    found = refused(one, tmp_path, {"x": BF16_ROWS}, other=other)
    assert "nothing is proved of" in found.what and "rounding moves the original" in found.what
    assert "verify.samples" in found.fix


def test_rounding_excuses_no_other_answer(tmp_path):
    plain = model_of(lambda self, x: x * 2)
    for wrong in (1.8, 2.2, -2.0):
        other = model_of(lambda self, x, wrong=wrong: x * wrong)
        assert "is not the original model's" in refused(other, tmp_path, {"x": BF16_ROWS}, other=plain).what


def lay_golden(found: Proved, folder) -> Artifact:
    pack.pack(found, {}, folder)
    return open_artifact(folder)
