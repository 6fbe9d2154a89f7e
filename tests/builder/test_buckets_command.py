"""`aotair buckets`: traces read, the best buckets chosen and bounded, the recipe's block replaced."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cases import ROOT
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair.buckets import limits
from aotair.buckets.block import as_plain, replaced
from aotair.buckets.choose import best_buckets
from aotair.buckets.trace import Trace, read_trace
from aotair.cli import main
from aotair.recipe.entry import EntryJob, entry_jobs
from aotair.recipe.read import parse_recipe, read_recipe
from aotair.recipe.recipe import Recipe
from aotair_runtime.call.buckets import choose as at_run_time
from aotair_runtime.errors import AotairError, ShapeError
from aotair_runtime.format.schema import Bucket, Dim, EntryPoint

RECIPE = ROOT / "recipes" / "minilm.yaml"
TRACE = "batch,seq,count\n1,5,10\n1,9,4\n2,30,3\n4,17,2\n4,64,1\n8,100,1\n8,12,5\n"


def _of(recipe: Recipe) -> tuple[str, EntryJob]:
    """The recipe's name, and its only entry point."""
    return recipe.name, entry_jobs(recipe)[0]


def command(*arguments: object):
    return CliRunner().invoke(main, ["buckets", *map(str, arguments)])


def trace_of(rows: dict[tuple[int, ...], int]) -> Trace:
    """Dimensions a, b, …."""
    ordered = sorted(rows.items())
    dims = tuple("abcd"[: len(ordered[0][0])])
    return Trace(dims, tuple(sizes for sizes, _ in ordered), tuple(count for _, count in ordered))


def entry(dims, paddable, buckets) -> EntryPoint:
    made = tuple(Bucket(bucket, (), (), (), (), 0, 0, None) for bucket in buckets)
    return EntryPoint("forward", tuple(map(Dim, dims, paddable)), (), (), ("const", None), made, ())


def run_cost(trace: Trace, paddable, buckets) -> int | None:
    """The elements run, as the runtime chooses; None where it finds no bucket."""
    point = entry(trace.dims, paddable, buckets)
    try:
        return sum(math.prod(buckets[at_run_time(point, sizes)]) * n for sizes, n in zip(trace.sizes, trace.counts))
    except ShapeError:
        return None


def brute(trace: Trace, paddable, most: int, ceiling: int | None = None) -> int | None:
    """The least elements run in at most so many buckets, by trying all."""
    columns = [sorted({sizes[axis] for sizes in trace.sizes}) for axis in range(len(trace.dims))]
    corners = [one for one in itertools.product(*columns) if ceiling is None or math.prod(one) <= ceiling]
    sets = itertools.chain.from_iterable(itertools.combinations(corners, n) for n in range(1, most + 1))
    return min((cost for one in sets if (cost := run_cost(trace, paddable, one)) is not None), default=None)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.tuples(st.integers(1, 40)), st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 4))
def test_one_dimension_is_exact(rows, most):
    trace = trace_of(rows)
    pick = best_buckets(trace, [True], most)[-1]
    assert pick.cost == pick.bound == run_cost(trace, [True], pick.buckets) == brute(trace, [True], most)
    assert len(pick.buckets) <= most


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.tuples(st.integers(1, 4), st.integers(1, 9)), st.integers(1, 30), min_size=1, max_size=7),
    st.integers(1, 3),
    st.tuples(st.booleans(), st.booleans()),
)
def test_the_bound_of_two_dimensions_is_sound(rows, most, paddable):
    trace = trace_of(rows)
    best = brute(trace, paddable, most)
    if best is None:
        with pytest.raises(AotairError, match="cannot be padded"):
            best_buckets(trace, paddable, most)
        return
    for count, pick in enumerate(best_buckets(trace, paddable, most), 1):
        if pick is not None:
            least = brute(trace, paddable, count)
            assert pick.bound <= least <= pick.cost == run_cost(trace, paddable, pick.buckets)
            assert len(pick.buckets) <= count
    assert pick.cost <= best * 1.05


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.tuples(st.integers(1, 4), st.integers(1, 6)), st.integers(1, 30), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(6, 24),
)
def test_no_bucket_is_larger_than_the_ceiling(rows, most, ceiling):
    trace = trace_of(rows)
    best = brute(trace, [True, True], most, ceiling)
    try:
        pick = best_buckets(trace, [True, True], most, ceiling)[-1]
    except AotairError as error:
        largest = max(map(math.prod, trace.sizes))
        assert best is None or "were found" in str(error), largest
        return
    assert all(math.prod(bucket) <= ceiling for bucket in pick.buckets)
    assert pick.bound <= best <= pick.cost == run_cost(trace, [True, True], pick.buckets)


def test_a_coarser_grid_keeps_the_bound_sound(monkeypatch):
    from aotair.buckets import bound

    rows = {(a, b): 1 + (a * 7 + b * 5) % 11 for a in range(1, 7) for b in range(3, 40, 3) if (a + b) % 2}
    fine = best_buckets(trace_of(rows), [True, True], 4)[-1]
    monkeypatch.setattr(bound, "_CORNERS", 20)
    coarse = best_buckets(trace_of(rows), [True, True], 4)[-1]
    assert coarse.bound <= fine.cost and fine.bound <= coarse.cost and fine.bound >= 0.97 * fine.cost


def test_the_same_trace_gives_the_same_buckets():
    rows = {(1 + i % 6, 1 + (i * i) % 90): 1 + i % 7 for i in range(200)}
    assert best_buckets(trace_of(rows), [True, True], 6) == best_buckets(trace_of(rows), [True, True], 6)


def test_many_lengths_are_exact():
    trace = trace_of({(i,): 1 + i % 13 for i in range(1, 10_001)})
    picks = best_buckets(trace, [True], 64)
    costs = [pick.cost for pick in picks]
    saved = [a - b for a, b in itertools.pairwise(costs)]
    assert len(picks) == 64 and all(a >= b >= 0 for a, b in itertools.pairwise(saved))  # Monge: convex
    assert picks[-1].buckets[-1] == (10_000,) and run_cost(trace, [True], picks[-1].buckets) == costs[-1]


def test_what_cannot_be_padded_gets_each_of_its_values():
    trace = trace_of({(1, 5): 9, (1, 9): 1, (3, 2): 5, (7, 4): 1})
    picks = best_buckets(trace, [False, True], 4)
    assert picks[:2] == [None, None]
    assert picks[2].buckets == ((1, 9), (3, 2), (7, 4)) and picks[3].buckets == ((1, 5), (1, 9), (3, 2), (7, 4))
    with pytest.raises(AotairError, match=r"a cannot be padded(.|\n)*at least 3"):
        best_buckets(trace, [False, True], 2)


def test_traces_are_read(tmp_path: Path):
    table, lines = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text("\ufeffseq, batch,when,count\r\n5,1,noon,2\r\n7,1,,\r\n5,1,x,1\r\n", encoding="utf-8")
    lines.write_text('{"batch": 1, "seq": 5, "count": 3, "when": 1.5}\n\n{"seq": 7, "batch": 1}\n')
    wanted = Trace(("batch", "seq"), ((1, 5), (1, 7)), (3, 1))
    assert read_trace(table, ("batch", "seq")) == read_trace(lines, ("batch", "seq")) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no request"), ("batch,seq\n", "no request"), ("batch\n1\n", "line 2: seq is missing"),
        ("batch,seq\n1,-4\n", "line 2: seq is '-4'"), ("batch,seq\n0,4\n", "batch is '0'"),
        ("batch,seq\n1,x\n", "seq is 'x'"), ("batch,seq\n1,4.0\n", "seq is '4.0'"), ("batch,seq\n1\n", "1 cells"),
        ("batch,seq,count\n1,4,0\n", "count is '0'"), ("batch,seq,seq\n1,4,4\n", "twice"),
        ("batch,seq\n1," + "9" * 5000, "seq is"), ("batch,seq\n1,2147483648", "seq is"), ("\0\1\2", "not text"),
        ("x" * (1 << 20), "characters"), ('{"batch": 1}\n', "seq is missing"), ('{"batch": 1', "line 1"),
        ('{"batch": true, "seq": 1}', "batch is 'True'"), ('{"batch": 1.5, "seq": 1}', "batch is '1.5'"),
        ('{"batch": NaN, "seq": 1}', "batch is 'nan'"), ('{"batch": 1, "seq": 2}\n[1]\n', "line 2: not an object"),
        ('{"a":' * 100_000, "RecursionError"), ('{"batch": 1, "seq": ' + "9" * 5000 + "}", "line 1"),
    ],
)  # fmt: skip
def test_hostile_traces_are_refused(tmp_path: Path, text: str, says: str):
    file = tmp_path / "trace"
    file.write_text(text)
    done = command(file, "--recipe", RECIPE)
    assert done.exit_code == 1 and "trace: no trace" in done.stderr and says in done.stderr


def test_bytes_and_missing_files_are_refused(tmp_path: Path):
    file = tmp_path / "trace"
    file.write_bytes(b"\xff\xfe\x00batch")
    assert "no trace: UnicodeDecodeError" in command(file, "--recipe", RECIPE).stderr
    assert "no trace: FileNotFoundError" in command(tmp_path / "nowhere", "--recipe", RECIPE).stderr
    file.write_text("batch,seq,count\n" + "2147483647,2147483647,2147483647\n")
    assert "too large to be counted" in command(file, "--recipe", RECIPE).stderr


def test_the_command_from_trace_to_recipe(tmp_path: Path):
    recipe, trace = tmp_path / "r.yaml", tmp_path / "t.csv"
    recipe.write_text(RECIPE.read_text())
    trace.write_text(TRACE)
    shown = command(trace, "--recipe", recipe, "--most", 4, "--seconds-per-bucket", 2.5)
    for part in ("26 requests of 7 shapes", "chosen: 4 buckets", "build seconds", "exact", "buckets:\n  - {batch: "):
        assert part in shown.stdout, shown.output
    assert recipe.read_text() == RECIPE.read_text()
    done = command(trace, "--recipe", recipe, "--most", 9, "--captures", 4, "--json", "--write")
    found = json.loads(done.stdout)
    (after,) = entry_jobs(read_recipe(recipe))
    assert [dict(zip(after.dims(), bucket)) for bucket in after.bucket_sizes()] == found["buckets"]
    assert [one["buckets"] for one in found["curve"]] == [1, 2, 3, 4] and found["chosen"]["gap"] == 0
    assert sum(one["requests"] for one in found["chosen"]["serves"]) == 26
    old, new = RECIPE.read_text(), recipe.read_text()
    assert new.startswith(old.partition("  batch: [")[0]) and new.endswith("\n" + old[old.index("verify:") :])
    assert command(trace, "--recipe", recipe, "--most", 4, "--write").exit_code == 0 and recipe.read_text() == new


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("buckets:  # ours\r\n    batch: [1]\r\n    seq: [4, 8]\r\n\r\n# end\r\n",
         "buckets:  # ours\r\n    batch: [2]\r\n    seq: [3, 5]\r\n\r\n# end\r\n"),
        ("buckets: {batch: [1], seq: [4]}  # ours", "buckets: {batch: [2], seq: [3, 5]}  # ours"),
        ("buckets:\n- batch: 1\n  seq: 4\n- {batch: 2, seq: 4}\nconfig: {}",
         "buckets:\n  batch: [2]\n  seq: [3, 5]\nconfig: {}"),
        ('buckets:\n  - {batch: 1, seq: 4}\n\n"verify": {}', 'buckets:\n  batch: [2]\n  seq: [3, 5]\n\n"verify": {}'),
    ],
)  # fmt: skip
def test_only_the_block_is_replaced(before: str, after: str):
    head = RECIPE.read_text().partition("\nbuckets:")[0] + "\n"
    assert replaced(head + before, {"batch": [2], "seq": [3, 5]}, "r.yaml") == head + after


@pytest.mark.parametrize(
    "block",
    [
        "buckets:\n  batch: [1]  # one\n  seq: [4]\n",
        "buckets: &b {batch: [1], seq: [4]}\nconfig: *b\n",
        "buckets:\n  batch: &n [1]\n  seq: *n\nbuckets: {batch: [1], seq: [1]}\n",
        "buckets:\n  batch: &n [1]\n  seq: [4]\nverify: {seed: 0}\nconfig: {}\nfusion: *n\n",
    ],
)
def test_what_is_not_safe_to_replace_stays(block: str):
    head = RECIPE.read_text().partition("\nbuckets:")[0] + "\n"
    with pytest.raises(AotairError, match="cannot be replaced safely"):
        replaced(head + block, {"batch": [2], "seq": [3]}, "r.yaml")


def test_a_product_is_written_as_one():
    assert as_plain(("a", "b"), [(1, 4), (1, 8), (2, 4), (2, 8)]) == {"a": [1, 2], "b": [4, 8]}
    assert as_plain(("a", "b"), [(2, 4), (1, 8)]) == [{"a": 1, "b": 8}, {"a": 2, "b": 4}]
    assert as_plain(("a",), [(9,), (4,)]) == {"a": [4, 9]}


def test_limits(tmp_path: Path, monkeypatch):
    trace = tmp_path / "t.csv"
    trace.write_text(TRACE)
    assert "build once and pass --artifact" in command(trace, "--recipe", RECIPE, "--memory", 5).stderr
    assert "--seconds-per-bucket" in command(trace, "--recipe", RECIPE, "--build-seconds", 5).stderr
    seconds = ("--build-seconds", 7.9, "--seconds-per-bucket", 2)
    assert json.loads(command(trace, "--recipe", RECIPE, "--json", *seconds).stdout)["chosen"]["buckets"] == 3
    assert "leaves no bucket" in command(trace, "--recipe", RECIPE, *seconds[:2], seconds[2], 8).stderr
    program = type("Program", (), {"name": "minilm", "entry_points": (_built([(1, 8), (4, 8), (8, 32)], 1000, 10),)})
    monkeypatch.setattr(limits, "read_program", lambda path: program)
    arena = limits.fit_arena(tmp_path, *_of(read_recipe(RECIPE)))
    assert arena.estimate(100) == pytest.approx(2000, abs=1) and arena.elements(2000) in (99, 100)
    memory = ("--artifact", tmp_path, "--json", "--memory")
    found = json.loads(command(trace, "--recipe", RECIPE, *memory, 9100).stdout)
    assert found["chosen"]["arena"] <= 9100 and found["arena_fit"]["buckets"] == 3
    assert "too small for the largest" in command(trace, "--recipe", RECIPE, *memory, 8000).stderr
    static = parse_recipe({**yaml.safe_load(RECIPE.read_text()), "name": "other"})
    with pytest.raises(AotairError, match="not one of this recipe"):
        limits.fit_arena(tmp_path, *_of(static))


def _built(sizes, fixed: int, each: int) -> EntryPoint:
    made = entry(("batch", "seq"), (True, True), sizes)
    return replace(made, buckets=tuple(replace(b, height=fixed + each * math.prod(b.sizes)) for b in made.buckets))


def test_the_buckets_of_one_entry_point(tmp_path: Path):
    recipe, trace = tmp_path / "r.yaml", tmp_path / "t.jsonl"
    recipe.write_text(
        "name: notebook\nmodel: {factory: 'm:f'}\nentry_points:\n  write:\n    method: write\n"
        "    inputs: {x: {shape: [n, 4], dtype: float32, pad: 0}}\n    buckets:\n      n: [1, 4]\n"
        "  read: {method: read, inputs: {q: {shape: [m, 4], dtype: float32, pad: 0}}, buckets: {m: [2, 8]}}\n"
    )
    for entry, dim in (("write", "n"), ("read", "m")):
        trace.write_text("".join(f'{{"{dim}": {size}}}\n' for size in (1, 3, 3, 7)))
        arguments = ["buckets", str(trace), "--recipe", str(recipe), "--most", "2", "--write"]
        refused = CliRunner().invoke(main, arguments)
        assert refused.exit_code == 1 and "--entry NAME" in refused.output and "write, read" in refused.output
        done = CliRunner().invoke(main, [*arguments, "--entry", entry])
        assert done.exit_code == 0, done.output
    parts = read_recipe(recipe).entry_points
    assert parts["write"].buckets == {"n": [3, 7]} and parts["read"].buckets == {"m": [3, 7]}
    assert CliRunner().invoke(main, [*arguments, "--entry", "other"]).exit_code == 1
