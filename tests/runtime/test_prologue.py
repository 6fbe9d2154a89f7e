"""Weights that follow from others: right at a load, and after a load of other weights what a build of those has."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from nodes import Node
from once import made_once
from weight_arithmetic import OPS, USES, WIDTH, made

import aotair
from aotair_runtime.errors import MalformedError, WeightsError
from aotair_runtime.format import codec
from aotair_runtime.format.rules import check_program
from aotair_runtime.format.schema import Part, Program
from aotair_runtime.weights import prologue, swap

NUMBER = st.integers(0, 63)
STEPS = st.lists(st.tuples(st.sampled_from(sorted(OPS)), NUMBER, NUMBER, NUMBER), min_size=1, max_size=10)
USED = st.lists(st.tuples(st.sampled_from(sorted(USES)), NUMBER), min_size=1, max_size=4)
X = torch.linspace(-1, 1, 3 * WIDTH).view(3, WIDTH)
# A product, a cat of it, and two values that share a computation; and one that shares none.
MERGED = [("softmax", 2, 2, 0), ("product", 0, 1, 0), ("cat", 5, 2, 1), ("quantised", 6, 6, 1), ("row", 7, 3, 2)]
TWICE = [("linear", 0), ("matmul", 1), ("scaled", 2), ("bias", 4)]


def built(node: Node, path: Path, model: torch.nn.Module) -> Path:
    with torch.device("cpu"):
        rows = {"x": {"shape": ["n", WIDTH], "dtype": "float32", "pad": "any"}}
        return aotair.build(model=model, out=path, inputs=rows, buckets={"n": [1, 4]}, target={"device": node.kind})


def checkpoint(model: torch.nn.Module, file: Path, **other: torch.Tensor) -> Path:
    safetensors.torch.save_file(model.state_dict() | other, file)
    return file


def answers(node: Node, model) -> list[bytes]:
    return [output.cpu().numpy().tobytes() for output in model(X.to(node.device))]


def close(node: Node, model, original: torch.nn.Module) -> None:
    with torch.device("cpu"):
        want = original(X)
    for got, wanted in zip(model(X.to(node.device)), want, strict=True):
        torch.testing.assert_close(got.cpu(), wanted, atol=1e-3, rtol=1e-3)


@pytest.fixture
def merged(node, common_folder: Path):
    """A loaded model with derived weights."""
    path = made_once(
        common_folder / f"merged_{node.kind}.aotair", lambda path: built(node, path, made(MERGED, TWICE, 0))
    )
    with aotair.load(path, device=node.kind) as model:
        yield model


# ---- the numbers ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_gives_what_a_build_of_it_gives(node, merged, tmp_path: Path):
    derived = [c.name for c in merged.program.constants if c.kind == "derived"]
    assert derived and not any(c.kind == "weight" and c.name == "second" for c in merged.program.constants)
    addresses = [tensor.data_ptr() for tensor in merged._resident.constants]
    first, stats = answers(node, merged), merged.stats()
    for seed in (1, 2, 3):
        other = made(MERGED, TWICE, seed)
        merged.load_weights(checkpoint(other, tmp_path / f"{seed}.safetensors"))
        close(node, merged, other)
        with aotair.load(built(node, tmp_path / f"{seed}.aotair", other), device=node.kind) as fresh:
            assert answers(node, merged) == answers(node, fresh) != first
    assert [tensor.data_ptr() for tensor in merged._resident.constants] == addresses
    now = merged.stats()
    assert [b.captures for b in now.buckets] == [b.captures for b in stats.buckets]
    merged.load_weights(checkpoint(made(MERGED, TWICE, 0), tmp_path / "0.safetensors"))
    assert answers(node, merged) == first


def test_an_artifact_of_other_weights(node, merged, tmp_path: Path):
    other = built(node, tmp_path / "other.aotair", made(MERGED, TWICE, 5))
    merged.load_weights(other)
    with aotair.load(other, device=node.kind) as fresh:
        assert answers(node, merged) == answers(node, fresh)


def tried(request: pytest.FixtureRequest, node: Node, folder: Path, default: int) -> None:
    count = request.config.getoption("--graphs")

    @settings(
        max_examples=count or default,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # each try is two builds: to look for the smallest would take an hour
    )
    @given(STEPS, USED)
    def run(steps: list, uses: list) -> None:
        one, two = made(steps, uses, 1), made(steps, uses, 2)
        with aotair.load(built(node, folder / "one.aotair", one), device=node.kind) as model:
            close(node, model, one)
            model.load_weights(checkpoint(two, folder / "two.safetensors"))
            with aotair.load(built(node, folder / "two.aotair", two), device=node.kind) as fresh:
                assert answers(node, model) == answers(node, fresh)

    (run if count else seeded(0)(run))()


@pytest.mark.timeout(3600)
def test_random_weight_arithmetic(request, node, tmp_path: Path):
    tried(request, node, tmp_path, 5)


def test_random_weight_arithmetic_is_derived(tmp_path: Path):
    """What the random test makes is what it is about."""
    steps = [(name, number, number + 1, number) for number, name in enumerate(OPS)]
    path = aotair.build(
        model=made(steps, [("linear", n) for n in range(8)], 0),
        out=tmp_path / "x.aotair",
        inputs={"x": {"shape": [3, WIDTH], "dtype": "float32"}},
        buckets=[{}],
    )
    program = aotair.load(path).program
    assert sum(c.kind == "derived" for c in program.constants) >= 5
    assert {program.ops[program.instructions[n].op].name for n in program.entry_points[0].buckets[0].code} <= {
        "aten::addmm.out", "aten::mm.out", "aten::tanh_", "aten::tanh.out", "aten::copy_", "aten::clone", "aten::mm",
    }  # fmt: skip


def test_a_checkpoint_follows_the_fixed_constants_that_an_artifact_brought(node, merged, tmp_path: Path):
    """No checkpoint has them, so they are those of the artifact that was loaded last."""
    other, checkpoint_of = made(MERGED, TWICE, 1), made(MERGED, TWICE, 2)
    for model in (other, checkpoint_of):
        model.fixed.mul_(-0.5)
    merged.load_weights(built(node, tmp_path / "other.aotair", other))
    merged.load_weights(checkpoint(checkpoint_of, tmp_path / "w.safetensors"))
    close(node, merged, checkpoint_of)


# ---- all or nothing ------------------------------------------------------------------------------------------------


def test_a_prologue_that_fails_at_any_part_leaves_the_old_weights(node, merged, tmp_path: Path, monkeypatch):
    file, before = checkpoint(made(MERGED, TWICE, 1), tmp_path / "w.safetensors"), answers(node, merged)
    parts = len(merged.program.prologue.parts)
    assert parts > 1
    for failing in range(parts):
        count = iter(range(parts))

        def broken(*given):
            if next(count) == failing:  # noqa: B023
                raise RuntimeError("planted")
            return prologue.made_by(*given)

        monkeypatch.setattr(swap, "made_by", broken)
        with pytest.raises(RuntimeError, match="planted"):
            merged.load_weights(file)
        assert answers(node, merged) == before
    monkeypatch.undo()
    merged.load_weights(file)
    assert answers(node, merged) != before


def test_a_checkpoint_that_lacks_what_only_the_prologue_reads(node, merged, tmp_path: Path):
    tensors = made(MERGED, TWICE, 1).state_dict()
    before = answers(node, merged)
    for change, says in (
        ({"second": None}, "missing: second"),
        ({"second": torch.ones(2, 2)}, r"second is float32\[2, 2\] in w.safetensors, not float32\[6, 6\]"),
        ({"second": torch.ones(6, 6).double()}, "cast=True"),
    ):
        changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
        safetensors.torch.save_file(changed, tmp_path / "w.safetensors")
        with pytest.raises(WeightsError, match=f"(?s){says}"):
            merged.load_weights(tmp_path / "w.safetensors")
        assert answers(node, merged) == before
    safetensors.torch.save_file({n: t.double() for n, t in tensors.items()}, tmp_path / "w.safetensors")
    merged.load_weights(tmp_path / "w.safetensors", cast=True)
    close(node, merged, made(MERGED, TWICE, 1))


def test_calls_of_other_threads_see_one_checkpoint_each(node, merged, tmp_path: Path):
    files = [checkpoint(made(MERGED, TWICE, seed), tmp_path / f"{seed}.safetensors") for seed in (1, 2)]
    known = set()
    for file in files:
        merged.load_weights(file)
        known.add(tuple(answers(node, merged)))
    seen, stop, x = [], threading.Event(), X.to(node.device)

    def call() -> None:
        with node.stream():
            while not stop.is_set():
                with merged.entry_points["forward"].aside():
                    seen.append(tuple(output.cpu().numpy().tobytes() for output in merged(x)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(50):
        merged.load_weights(files[number % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert len(seen) >= 4 and set(seen) <= known


# ---- the rules of the format ---------------------------------------------------------------------------------------


def spoilt(program: Program, **changes) -> Program:
    part = replace(program.prologue.parts[0], **changes)
    return replace(program, prologue=replace(program.prologue, parts=(part, *program.prologue.parts[1:])))


def test_a_prologue_is_written_and_read_as_it_is(merged):
    again = codec.parse(codec.dump(merged.program), "x")
    assert again == merged.program and again.prologue.parts


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda p: spoilt(p, reads=(99,)), r"prologue\.parts\[0\]\.reads"),
        (lambda p: spoilt(p, makes=(99,)), r"prologue\.parts\[0\]\.makes"),
        (lambda p: spoilt(p, makes=()), r"prologue\.parts\[0\]\.makes"),
        (lambda p: spoilt(p, makes=p.prologue.parts[0].makes * 2), r"prologue\.parts\[0\]\.makes"),
        (lambda p: spoilt(p, makes=p.prologue.parts[1].makes), r"prologue\.parts\[[01]\]"),
        (lambda p: spoilt(p, reads=p.prologue.parts[0].makes), r"prologue\.parts\[0\]\.reads"),
        (lambda p: spoilt(p, bucket=replace(p.prologue.parts[0].bucket, sizes=(1,))), r"bucket\.sizes"),
        (lambda p: spoilt(p, bucket=replace(p.prologue.parts[0].bucket, streams=2)), "one stream"),
        (lambda p: spoilt(p, bucket=replace(p.prologue.parts[0].bucket, code=(9999,))), "code"),
        (lambda p: spoilt(p, bucket=p.entry_points[0].buckets[0]), r"prologue\.parts\[0\]"),
        (lambda p: replace(p, prologue=replace(p.prologue, arena=-64)), r"prologue\.arena"),
        (lambda p: replace(p, prologue=replace(p.prologue, arena=1)), r"prologue\.arena"),
        (lambda p: replace(p, prologue=replace(p.prologue, arena=0)), r"prologue\.parts"),
        (lambda p: replace(p, prologue=replace(p.prologue, sources=())), r"prologue\.parts"),
        (
            lambda p: replace(p, prologue=replace(p.prologue, sources=(replace(p.constants[0], kind="fixed"),))),
            "constants",
        ),
        (lambda p: replace(p, ops=tuple(replace(op, name="npu::x") for op in p.ops)), "ops of torch itself"),
    ],
)
def test_a_prologue_that_breaks_the_format_is_refused(merged, change, place: str):
    check_program(merged.program, "x")
    with pytest.raises(MalformedError, match=place):
        check_program(change(merged.program), "x")


def test_a_part_cannot_reach_beyond_what_it_reads_and_makes(merged):
    """Each tensor of each part moved to the end of its memory, and beyond."""
    program, tried_ = merged.program, 0
    for number, part in enumerate(program.prologue.parts):
        for position, placement in enumerate(part.bucket.tensors):
            moved = replace(placement, offset=placement.offset + (1 << 20))
            tensors = (*part.bucket.tensors[:position], moved, *part.bucket.tensors[position + 1 :])
            changed: Part = replace(part, bucket=replace(part.bucket, tensors=tensors))
            parts = (*program.prologue.parts[:number], changed, *program.prologue.parts[number + 1 :])
            with pytest.raises(MalformedError):
                check_program(replace(program, prologue=replace(program.prologue, parts=parts)), "x")
            tried_ += 1
    assert tried_ > 5
