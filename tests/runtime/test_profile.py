"""Profiles: answers and states are as without one, times add up, nothing is left in the way of calls, and the trace is
what Perfetto's rules ask for, whoever wrote the names in it."""

import json
import math
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nodes import Node

import aotair
from aotair_runtime import Model
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact, read_golden
from aotair_runtime.call.entry import Entry
from aotair_runtime.errors import AlteredError, ArgumentError, ClosedError, ShapeError
from aotair_runtime.format import codec, debug_data
from aotair_runtime.format.debug_data import DebugData, Made
from aotair_runtime.format.schema import Bucket, Form, Instruction, Layout, Op, Placement, Space, TensorArg
from aotair_runtime.profile import profile as profile_module
from aotair_runtime.profile.costs import Cost, cost
from aotair_runtime.profile.live import live_bytes
from aotair_runtime.profile.profile import Profile
from aotair_runtime.profile.schedule import schedule
from aotair_runtime.profile.stepped import Step, Times
from aotair_runtime.weights.golden import key

NAMES = ("encoder", "linear", "counter", "swap", "cache", "structured", "views", "streams", "branches", "halves")


def inputs(model: Model, entry: str, number: int) -> list:
    """The golden inputs of a bucket, each time as new tensors."""
    spec = model.entry_points[entry].spec
    golden = read_golden(model.artifact)
    found = [golden[key(entry, number, "in", item.name)] for item in spec.inputs]
    return [t.tolist() if item.host else t.to(model.device, copy=True) for item, t in zip(spec.inputs, found)]


def answers(model: Model, profiled: bool) -> tuple[list, Profile | None]:
    """Three calls of every bucket: outputs, inputs afterwards, states afterwards."""
    found: list[object] = []
    profile = model.profile(rounds=2, seconds=0)
    if profiled:
        profile.__enter__()
    for name, entry in model.entry_points.items():
        for number in range(len(entry.spec.buckets)):
            given = inputs(model, name, number)
            for _ in range(3):
                found.append([output.clone() for output in entry.flat(given)])
            found += [
                [t.clone() for t in given if isinstance(t, torch.Tensor)],
                [s.clone() for s in model.state.values()],
            ]
    if profiled:
        profile.__exit__()
    return found, profile


@pytest.mark.parametrize("name", NAMES)
def test_calls_within_answer_and_write_as_they_do_without(node: Node, name: str):
    with node.load(name) as model:
        plain, _ = answers(model, profiled=False)
    with node.load(name) as model:
        watched, profile = answers(model, profiled=True)
        assert model.stats().calls == len(profile.calls) == 3 * sum(map(len, model.buckets.values()))
        assert all(bucket.calls == 3 for bucket in profile.buckets)
        assert len(profile.buckets) == sum(map(len, model.buckets.values()))
    for without, within in zip(plain, watched, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(without, within, strict=True))


@pytest.mark.parametrize("clone_input", [True, False])
def test_an_output_may_go_back_in(node: Node, clone_input: bool):
    """An input in the arena is overwritten by the first replay: the rounds must not see that."""
    results = []
    for profiled in (False, True):
        with node.load("counter", clone_input=clone_input) as model:
            (given,) = inputs(model, "forward", 0)[:1]
            profile = model.profile(rounds=3, seconds=0)
            if profiled:
                profile.__enter__()
            for _ in range(3):
                out = model.entry_points["forward"].flat([given])
                fits = [t for t in out if t.shape == given.shape and t.dtype == given.dtype]
                given = fits[0] if fits else given
            results.append([t.clone() for t in out])
            if profiled:
                profile.__exit__()
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_nothing_is_in_the_way_of_calls_when_no_profile_is_under_way(node: Node):
    with node.load("linear") as model:
        entry = model.entry_points["forward"]
        given = inputs(model, "forward", 0)
        assert not {"flat", "_replay"} & vars(entry).keys()
        with model.profile(rounds=1, seconds=0):
            assert {"flat", "_replay"} <= vars(entry).keys()
            model(*given)
        assert not {"flat", "_replay"} & vars(entry).keys()
        assert entry.flat.__func__ is Entry.flat
        with pytest.raises(ZeroDivisionError), model.profile():
            raise ZeroDivisionError
        assert not {"flat", "_replay"} & vars(entry).keys()


def test_a_profile_in_a_profile_and_of_a_closed_model_is_refused(node: Node):
    with node.load("linear") as model:
        with model.profile(), pytest.raises(ArgumentError, match="under way"), model.profile():
            pass
        with model.profile(rounds=1, seconds=0) as again:
            model(*inputs(model, "forward", 0))
        assert len(again.calls) == 1
    with pytest.raises(ClosedError):
        model.profile()


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"rounds": True}, {"rounds": 10**9}, {"seconds": -1}, {"seconds": math.nan}]
)
def test_wrong_settings_are_refused(node: Node, wrong: dict):
    with node.load("linear") as model, pytest.raises(ArgumentError, match=f"{next(iter(wrong))}="):
        model.profile(**wrong)


def test_a_call_that_does_not_fit_is_refused_as_ever(node: Node):
    with node.load("encoder") as model, model.profile(rounds=1, seconds=0) as profile:
        with pytest.raises(ShapeError):
            model(torch.ones(99, 99, dtype=torch.int64), torch.ones(99, 99, dtype=torch.int64))
        assert profile.calls == ()
    assert profile.table() == "nothing was called"


def test_calls_say_their_sizes_and_their_padding(node: Node, tmp_path: Path):
    with node.load("encoder") as model, model.profile(rounds=1, seconds=0) as profile:
        for batch, seq in ((1, 3), (2, 5), (1, 3)):
            ids = torch.ones(batch, seq, dtype=torch.int64)
            model(ids, ids)
    sizes = [profile.sizes(call) for call in profile.calls]
    assert sizes == [{"batch": 1, "seq": 3}, {"batch": 2, "seq": 5}, {"batch": 1, "seq": 3}]
    assert [call.sent for call in profile.calls] == [2 * 3, 2 * 10, 2 * 3]
    assert all(call.ran >= call.sent for call in profile.calls)
    file = tmp_path / "sizes.jsonl"
    profile.sent(file)
    assert [json.loads(line) for line in file.read_text().splitlines()] == sizes
    sent, ran = (sum(getattr(call, what) for call in profile.calls) for what in ("sent", "ran"))
    (total,) = [line.split() for line in profile.table().splitlines() if line.startswith("in all")]
    assert total[-1] == f"{1 - sent / ran:.1%}" and total[-3:-1] == [str(sent), str(ran)]


def test_threads_have_rows_of_their_own(node: Node, tmp_path: Path):
    with node.load("linear") as model, model.profile(rounds=1, seconds=0) as profile:
        given = inputs(model, "forward", 0)

        all_there = threading.Barrier(3)  # the number of one that ended may be given to the next

        def work() -> None:
            all_there.wait()
            for _ in range(5):
                model(*given)
            all_there.wait()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        profile.trace(tmp_path / "t.json")
    assert len(profile.calls) == 15 and len({call.thread for call in profile.calls}) == 3
    check_trace(tmp_path / "t.json")


# ---- times -----------------------------------------------------------------------------------------------------------


def test_times_are_means_of_the_fastest_quarter():
    slow = [[9.0, 9.0]] * 6
    times = Times([[1.0, 2.0], *slow, [2.0, 3.0]], [4.0, 100.0, 6.0, 7.0, 50.0])
    assert times.stepped == [1.5, 2.5] and times.whole == 5.0
    assert Times([[1.0, 2.0]], [3.0]).stepped == [1.0, 2.0]


def test_a_replay_is_as_long_as_its_instructions_on_the_host(built):
    with aotair.load(built("encoder")) as model, model.profile(rounds=50, seconds=5) as profile:
        model(*inputs(model, "forward", 0))
    (bucket,) = profile.buckets
    assert 0 < bucket.stepped == sum(step.seconds for step in bucket.steps)
    assert bucket.critical == pytest.approx(bucket.stepped), "one stream: nothing runs beside another"
    assert bucket.whole == pytest.approx(bucket.stepped, rel=0.5)
    assert len(bucket.steps) == len(bucket.live) == len(model.program.entry_points[0].buckets[0].code)
    assert all(step.made.line and step.made.module and step.made.passes for step in bucket.steps)


def step(seconds: float, stream: int = 0, form: int = int(Form.OUT), event: int = -1) -> Step:
    return Step("" if event >= 0 else "aten::op", "node", stream, form, event, seconds, Cost(0, 0), Made())


RECORD, WAIT = int(Form.RECORD), int(Form.WAIT)


def test_streams_run_side_by_side_as_far_as_events_let_them():
    steps = [
        step(1.0),
        step(0, form=RECORD, event=0),
        step(0, 1, WAIT, 0),
        step(5.0, 1),
        step(0, 1, RECORD, 1),
        step(2.0),
        step(0, form=WAIT, event=1),
        step(1.0),
    ]
    placed, end = schedule(steps)
    assert [one.began for one in placed] == [0, 1, 1, 1, 6, 1, 6, 6] and end == 7
    assert [one.flows for one in placed] == [(), (0,), (0,), (), (1,), (), (1,), ()]


def test_an_event_that_two_wait_for_has_an_arrow_to_each():
    steps = [step(0, form=RECORD, event=3), step(0, 1, WAIT, 3), step(0, 2, WAIT, 3), step(0, 0, WAIT, 9)]
    placed, _ = schedule(steps)
    assert [one.flows for one in placed] == [(0, 1), (0,), (1,), ()]


# ---- bytes and operations --------------------------------------------------------------------------------------------


def program_of(op: str, shapes: list[tuple[int, ...]], outs: int, given: int, dtype: str = "float32"):
    """A program with one instruction: `given` arguments, then `outs` results, of these shapes."""
    layouts = tuple(Layout(dtype, shape, tuple(torch.empty(shape, device="meta").stride())) for shape in shapes)
    tensors = tuple(Placement(int(Space.ARENA), 0, 0, n) for n in range(len(shapes)))
    args = tuple(TensorArg(n) for n in range(given))
    item = Instruction(0, int(Form.OUT), args, (), tuple(range(given, given + outs)), "n")
    program = aotair_runtime_program(layouts, op)
    return program, Bucket((), tensors, (), (), (0,), 0, 0, None), item


def aotair_runtime_program(layouts: tuple[Layout, ...], op: str):
    from aotair_runtime.format.schema import Options, Program, Requirements, Tolerance

    need = Requirements("2.9", "2.13", "cpu")
    ops = (Op(op, ""),)
    return Program("p", need, Options(True, False), Tolerance(0, 0), (), (), ops, layouts, (), (), 0, 64, ())


@pytest.mark.parametrize(
    ("op", "shapes", "given", "nbytes", "flops"),
    [
        ("aten::mm.out", [(3, 4), (4, 5), (3, 5)], 2, 4 * (12 + 20 + 15), 2 * 3 * 4 * 5),
        ("aten::addmm.out", [(5,), (3, 4), (4, 5), (3, 5)], 3, 4 * (5 + 12 + 20 + 15), 2 * 3 * 4 * 5),
        ("aten::bmm.out", [(2, 3, 4), (2, 4, 5), (2, 3, 5)], 2, 4 * (24 + 40 + 30), 2 * 2 * 3 * 4 * 5),
        ("aten::linear", [(2, 3, 4), (5, 4), (2, 3, 5)], 2, 4 * (24 + 20 + 30), 2 * 2 * 3 * 4 * 5),
        ("npu::npu_quant_matmul", [(3, 4), (4, 5), (3, 5)], 2, 4 * (12 + 20 + 15), 2 * 3 * 4 * 5),
        (
            "aten::scaled_dot_product_attention",
            [(1, 2, 3, 4), (1, 2, 7, 4), (1, 2, 7, 5), (1, 2, 3, 5)],
            3,
            4 * (24 + 56 + 70 + 30),
            2 * 2 * 3 * 7 * (4 + 5),
        ),
        ("aten::convolution.out", [(1, 3, 8, 8), (6, 3, 3, 3), (1, 6, 6, 6)], 2, 4 * (192 + 162 + 216), 2 * 216 * 27),
        ("aten::add.out", [(3, 4), (3, 4), (3, 4)], 2, 4 * 36, 12),
        ("aten::index_select.out", [(1000, 4), (3,), (3, 4)], 2, 4 * (12 + 12 + 3), 0),
        ("aten::index_copy_", [(1000, 4), (2,), (2, 4)], 3, 4 * (8 + 8 + 2), 0),
        ("air::paged_attention.out", [(3, 4), (9, 4), (3, 4)], 2, 4 * (12 + 36 + 12), 0),
        ("aten::mm.out", [(0, 4), (4, 5), (0, 5)], 2, 4 * 20, 0),
    ],
)
def test_what_an_op_moves_and_computes(op: str, shapes: list, given: int, nbytes: int, flops: int):
    program, bucket, item = program_of(op, shapes, len(shapes) - given, given)
    assert cost(program, bucket, item) == Cost(nbytes, flops)


def test_an_event_moves_nothing():
    program, bucket, item = program_of("aten::add.out", [(3,)], 0, 1)
    assert cost(program, bucket, replace(item, form=RECORD, args=(0,), op=-1)) == Cost(0, 0)


@pytest.mark.parametrize("name", ["encoder", "linear", "views", "streams", "structured", "halves"])
def test_live_bytes_are_those_that_somebody_will_read(built, name: str):
    """Against a count byte by byte, backwards."""
    with aotair.load(built(name)) as model:
        parts = model._parts
        for entry in model.program.entry_points:
            for bucket in entry.buckets:
                live = live_bytes(parts.program, bucket, parts.ops)
                assert live == byte_by_byte(parts, bucket)
                assert 0 < max(live) <= bucket.height


def byte_by_byte(parts, bucket: Bucket) -> list[int]:
    from aotair_runtime.profile.live import _range, _touched

    size = parts.program.arena
    reads, writes = [], []
    for number in bucket.code:
        read, written = _touched(parts.program, parts.program.instructions[number], parts.ops)
        masks = []
        for numbers in (read, written):
            mask = torch.zeros(size, dtype=torch.bool)
            for one in numbers:
                found = _range(parts.program, bucket, one)
                if found:
                    mask[found[0] : found[1]] = True
            masks.append(mask)
        reads.append(masks[0])
        writes.append(masks[1])
    needed = torch.zeros(size, dtype=torch.bool)  # after the last instruction: the outputs
    for one in bucket.outputs:
        found = _range(parts.program, bucket, one)
        if found:
            needed[found[0] : found[1]] = True
    counts = []
    for read, written in zip(reversed(reads), reversed(writes)):
        during = needed | read | written
        counts.append(int(during.sum()))
        needed = (needed & ~written) | read
    return counts[::-1]


# ---- the trace -------------------------------------------------------------------------------------------------------


def check_trace(file: Path) -> list[dict]:
    """The rules of the format, as Perfetto's importer has them: it drops slices that overlap without one lying within
    the other, and arrows whose ends lie in no slice."""
    text = file.read_text(encoding="utf-8")
    events = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["traceEvents"]
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert event["ph"] in "MXCsf" and type(event["pid"]) is int
        texts = [event["name"], *(text for text in event.get("args", {}).values() if isinstance(text, str))]
        assert all(text.isprintable() and len(text) <= 200 for text in texts)
        if event["ph"] != "M":
            assert math.isfinite(event["ts"]) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        ends: list[float] = []
        for start, end in sorted(row, key=lambda one: (one[0], -one[1])):
            while ends and ends[-1] <= start + 1e-6:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-6, "slices overlap, and neither lies within the other"
            ends.append(end)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    finishes = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == finishes.keys()
    for number, one in starts.items():
        assert one["ts"] <= finishes[number]["ts"]
        for end in (one, finishes[number]):
            assert any(a <= end["ts"] <= b for a, b in rows[end["pid"], end["tid"]])
    return events


def test_the_trace_has_the_load_the_calls_and_each_instruction(node: Node, tmp_path: Path):
    with node.load("encoder") as model:
        with model.profile(rounds=2, seconds=0) as profile:
            for _ in range(4):
                model(*inputs(model, "forward", 0))
        profile.trace(tmp_path / "t.json")
        bucket = model.program.entry_points[0].buckets[0]
    events = check_trace(tmp_path / "t.json")
    slices = Counter(event["name"] for event in events if event["ph"] == "X")
    assert {"check", "map", "check calls", "place weights", "allocate the arena"} <= slices.keys()
    assert sum(count for name, count in slices.items() if name.startswith("capture forward ")) == len(
        model.program.entry_points[0].buckets
    )
    for part in ("find the bucket", "copy in and fill", "launch", "wait", "hand out"):
        assert slices[part] == 4
    ran = [event for event in events if event["ph"] == "X" and event["pid"] == 10 and event["tid"] > 1]
    assert len(ran) == len(bucket.code)
    assert all({"bytes", "flops", "line", "module", "passes", "node"} <= event["args"].keys() for event in ran)
    counts = [event for event in events if event["ph"] == "C"]
    assert len(counts) == len(bucket.code) + 1 and max(e["args"]["bytes"] for e in counts) <= bucket.height
    assert node.has_graphs == any(name.startswith("warm up ") for name in slices)


def test_streams_have_rows_and_events_are_arrows(node: Node, tmp_path: Path):
    with node.load("streams") as model, model.profile(rounds=2, seconds=0) as profile:
        model(*inputs(model, "forward", 0))
        profile.trace(tmp_path / "t.json")
        bucket = model.program.entry_points[0].buckets[0]
    events = check_trace(tmp_path / "t.json")
    rows = {e["tid"] for e in events if e["ph"] == "X" and e["pid"] == 10 and e["tid"] > 1}
    assert len(rows) == bucket.streams > 1
    waits = sum(model.program.instructions[n].form == Form.WAIT for n in bucket.code)
    assert sum(e["ph"] == "s" for e in events) == waits > 0
    crossing = [e["id"] for e in events if e["ph"] == "s"]
    tids = {number: {e["tid"] for e in events if e.get("id") == number} for number in crossing}
    assert any(len(one) == 2 for one in tids.values())
    assert "stream" in [line.split()[0] for line in profile.table().splitlines() if line]


HOSTILE = "\x1b]0;gone\x07\x1b[2J\u202e\r\n\x00" + "x" * 5000 + "\x1b[2J\n\t\u202e"


def test_names_of_an_artifact_do_nothing_to_a_viewer(built, tmp_path: Path):
    path = tmp_path / "h.aotair"
    shutil.copytree(built("linear"), path)
    artifact = open_artifact(path)
    instructions = tuple(replace(item, node=HOSTILE) for item in artifact.program.instructions)
    program = codec.dump(replace(artifact.program, instructions=instructions, name=HOSTILE))
    made = DebugData(tuple(Made(HOSTILE, HOSTILE, HOSTILE) for _ in instructions))
    (path / "program.msgpack").write_bytes(program)
    (path / "debug.msgpack").write_bytes(debug_data.dump(made, program))
    with aotair.load(path) as model, model.profile(rounds=1, seconds=0) as profile:
        model(*inputs(model, "forward", 0))
    profile.trace(tmp_path / "t.json")
    check_trace(tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size < 100_000
    table = profile.table()
    assert all(line.isprintable() and len(line) < 300 for line in table.splitlines())


def test_an_artifact_that_says_nothing_of_its_instructions_has_a_profile_too(built, tmp_path: Path):
    path = tmp_path / "a.aotair"
    shutil.copytree(built("linear"), path)
    (path / "debug.msgpack").unlink()
    with aotair.load(path) as model, model.profile(rounds=1, seconds=0) as profile:
        model(*inputs(model, "forward", 0))
    assert "not known" in profile.table() and profile.buckets[0].steps[0].made == Made()


def test_a_damaged_one_is_refused_when_a_profile_is_asked_for(built, tmp_path: Path):
    path = tmp_path / "a.aotair"
    shutil.copytree(built("linear"), path)
    data = bytearray((path / "debug.msgpack").read_bytes())
    data[-1] ^= 1
    (path / "debug.msgpack").write_bytes(bytes(data))
    with aotair.load(path) as model:
        model(*inputs(model, "forward", 0))
        with pytest.raises(AlteredError):
            model.profile()


def test_only_the_latest_of_very_many_calls_are_kept(built, monkeypatch):
    monkeypatch.setattr(profile_module, "MOST_CALLS", 7)
    with aotair.load(built("linear")) as model, model.profile(rounds=1, seconds=0) as profile:
        given = inputs(model, "forward", 0)
        for _ in range(50):
            model(*given)
    assert len(profile.calls) == 7 and model.stats().calls == 50
    assert profile.calls[0].began < profile.calls[-1].began


def test_the_tables_add_up(built):
    with aotair.load(built("encoder")) as model, model.profile(rounds=5, seconds=1) as profile:
        for _ in range(4):
            model(*inputs(model, "forward", 0))
    whole = sum(bucket.stepped * bucket.calls for bucket in profile.buckets)
    from aotair_runtime.profile.tables import _BY, grouped

    for key_ in _BY.values():
        groups = grouped(profile.buckets, key_)
        assert sum(group.seconds for group in groups) == pytest.approx(whole)
        assert sum(group.runs for group in groups) == 4 * len(profile.buckets[0].steps)
    text = profile.table(top=1)
    assert sum(line.endswith(" more") or " more " in line for line in text.splitlines()) >= 3
    assert read_debug_data(model.artifact if model.artifact.folder else open_artifact(built("encoder"))).made


def test_what_cannot_be_written_is_an_error_that_names_the_place(node, tmp_path: Path):
    with node.load("linear") as model, model.profile() as found:
        model(torch.ones(1, 4, device=node.device))
    for write in (found.trace, found.sent):
        with pytest.raises(ArgumentError, match="cannot be written"):
            write(tmp_path / "nowhere" / "x.json")
        with pytest.raises(ArgumentError, match="cannot be written"):
            write(tmp_path)
