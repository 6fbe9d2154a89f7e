"""report.html: each bucket's arena drawn as it is planned, whose memory it is, and what is alive at the peak."""

import base64
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from cases import RECIPES, ROOT

import aotair
from aotair.export.export import export
from aotair.model.load import load_model
from aotair.passes import pipeline
from aotair.passes.changes import Change
from aotair.passes.edits import Account
from aotair.passes.observer import Observer, PassRecord
from aotair.plan.picture import DrawnPeak, Picture, Strip, drawn_peak
from aotair.program import Built, build_program
from aotair.promise import promised
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe, read_recipe
from aotair.report import arena
from aotair.report.explain import Explained
from aotair.report.page import pages
from aotair.report.passes import passes_page
from aotair.target.target import Target
from aotair_runtime.format.schema import Space

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["encoder", "linear", "counter", "swap", "cache", "structured", "views", "streams", "branches", "halves"]


def planned(recipe) -> tuple[Built, Explained]:
    exported, observer = export(load_model(recipe), recipe.entries[0]), Observer(Target("cpu"), keeps=True)
    pipeline.apply(exported.module, recipe.config, observer)
    built = build_program([exported], recipe, lambda *_: None, observer)
    return built, Explained(tuple(observer.records), ())


@functools.cache
def made_for(name: str) -> tuple[Built, Explained]:
    return planned(job_of(parse_recipe(RECIPES[name])))


def built_for(name: str) -> Built:
    return made_for(name)[0]


def report(built: Built, explained: Explained | None = None) -> dict[str, str]:
    return pages(built.program, built, explained or Explained((), ()))


def page(built: Built) -> str:
    """The page of the only entry point."""
    (entry,) = built.program.entry_points
    return report(built)[f"report/{entry.name}.html"]


def drawings(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg xmlns.*?</svg>", text, re.DOTALL)]


def boxes(svg: ElementTree.Element) -> dict[str, tuple[float, ...]]:
    """Left, top, width and height of each rectangle, by what hovering over it says."""
    found = {
        rect.findtext(f"{SVG}title"): tuple(float(rect.get(key)) for key in ("x", "y", "width", "height"))
        for rect in svg.iter(f"{SVG}rect")
    }
    assert len(found) == len(list(svg.iter(f"{SVG}rect")))
    return found


def read(title: str) -> tuple[int, int, int, int]:
    """Offset, size, first and last step, as the hover text has them."""
    size, offset = re.search(r"^([\d,]+) bytes at ([\d,]+)$", title, re.MULTILINE).groups()
    first, last = re.search(r"^step (\d+) \(.*\) to (\d+) \(.*\)$", title, re.MULTILINE).groups()
    return int(offset.replace(",", "")), int(size.replace(",", "")), int(first), int(last)


def strip(offset: int, size: int, first: int, last: int, **parts) -> Strip:
    given = {"kind": "inner", "name": f"at_{offset}_{first}", "dtype": "uint8", "shape": (size,)}
    return Strip(offset, size, first, last, **(given | {"others": (), "source": ""} | parts))


def steps(count: int) -> tuple[str, ...]:
    return tuple(f"op_{i}" for i in range(count))


# ---- what a picture holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_the_program_lies_in_a_strip(name):
    built = built_for(name)
    (entry,) = built.program.entry_points
    assert list(built.pictures) == [(entry.name, bucket.sizes) for bucket in entry.buckets]
    for bucket in entry.buckets:
        shown = built.pictures[entry.name, bucket.sizes]
        assert shown.height == bucket.height
        places = [(item.offset, item.offset + item.size) for item in shown.strips]
        for tensor in bucket.tensors:
            if tensor.space == Space.ARENA:
                assert any(low <= tensor.offset <= high for low, high in places)
        copies = {item.offset for item in shown.strips if item.kind == "input"}
        assert copies == {offset for offset in bucket.input_offsets if offset >= 0}


@pytest.mark.parametrize("name", NAMES)
def test_no_two_strips_share_a_byte(name):
    for shown in built_for(name).pictures.values():
        for i, a in enumerate(shown.strips):
            assert 0 <= a.first <= a.last < len(shown.steps) and a.offset >= 0 and a.offset + a.size <= shown.height
            for b in shown.strips[:i]:
                apart = a.last < b.first or b.last < a.first
                assert apart or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset, (a, b)


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_where_most_is_alive(name):
    built = built_for(name)
    for entry in built.program.entry_points:
        for bucket in entry.buckets:
            shown = built.pictures[entry.name, bucket.sizes]
            alive = [
                sum(-(-s.size // 64) * 64 for s in shown.strips if step in range(s.first, s.last + 1))
                for step in range(len(shown.steps))
            ]
            found = drawn_peak(shown)
            assert found.nbytes == max(alive) == bucket.lower_bound
            assert found.step == alive.index(max(alive))
            assert {s for s in shown.strips if s.first <= found.step <= s.last} == set(found.strips)
            assert [s.size for s in found.strips] == sorted((s.size for s in found.strips), reverse=True)


def test_the_strips_are_the_intervals_of_the_plan(monkeypatch):
    """What the planner was given and what it answered, against what is shown."""
    seen = []

    def spy(graph, lives, plan, alignment):
        seen.append((lives, plan))
        return original(graph, lives, plan, alignment)

    from aotair import program

    original = program.picture
    monkeypatch.setattr(program, "picture", spy)
    built, _ = planned(job_of(parse_recipe(RECIPES["encoder"])))
    for (lives, plan), shown in zip(seen, built.pictures.values(), strict=True):
        want = [(o, i.size, i.first, i.last) for i, o in zip(lives.intervals, plan.offsets) if i.size]
        assert [(s.offset, s.size, s.first, s.last) for s in shown.strips] == want
        assert shown.steps[1:-1] == tuple(node.name for node in lives.launches)
        residents = Counter(
            lives.copies[home.root.index] if home.root.space == Space.INPUT else home.root.index
            for home in lives.homes.values()
            if home.root.space in (Space.ARENA, Space.INPUT)
        )
        counts = [residents[number] - 1 for number, item in enumerate(lives.intervals) if item.size]
        assert [len(s.others) for s in shown.strips] == counts


def test_strips_know_their_tensor_and_the_line_of_the_model():
    shown = built_for("encoder").pictures["forward", (4, 16)]
    by_name = {item.name: item for item in shown.strips}
    ids = by_name["ids"]
    assert (ids.kind, ids.dtype, ids.shape, ids.size, ids.first) == ("input", "int64", (4, 16), 512, 0)
    (output,) = (item for item in shown.strips if item.kind == "output")
    assert output.dtype == "float32" and output.size == 4 * 16 * 16 * 4 and output.last == len(shown.steps) - 1
    lines = (ROOT / "tests" / "models.py").read_text().splitlines()
    (wide,) = (item for item in shown.strips if item.size == 4 * 16 * 64 * 4)
    assert wide.shape == (64, 64) and "gelu" in wide.others
    file, number = re.match(r"(\w+\.py):(\d+), in forward", wide.source).groups()
    assert file == "models.py" and "self.up" in lines[int(number) - 1]


# ---- what is drawn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_rectangles_are_the_strips_to_scale(name):
    built = built_for(name)
    svgs = iter(drawings(page(built)))
    for shown in built.pictures.values():
        if not shown.strips:
            continue
        drawn = boxes(next(svgs))
        found = {read(title): box for title, box in drawn.items()}
        assert sorted(found) == sorted((s.offset, s.size, s.first, s.last) for s in shown.strips)
        wide, high = arena._WIDTH / len(shown.steps), arena._HEIGHT / shown.height
        for (offset, size, first, last), box in found.items():
            top = arena._TOP + arena._HEIGHT - (offset + size) * high
            want = (arena._LEFT + first * wide, top, (last + 1 - first) * wide, size * high)
            assert box == pytest.approx(want, abs=0.001)
    assert next(svgs, None) is None


def test_hovering_names_the_tensor_and_the_line():
    built = built_for("encoder")
    *_, last = drawings(page(built))
    titles = list(boxes(last))
    assert any(t.startswith("ids: int64[4, 16]") and "inputs are copied in" in t for t in titles)
    (wide,) = (title for title in titles if "float32[64, 64]" in title)
    assert re.search(r"^models\.py:\d+, in forward$", wide, re.MULTILINE)
    assert re.search(r"^in its place too: .*gelu", wide, re.MULTILINE)
    assert any(re.search(r" and \d+ more$", title, re.MULTILINE) for title in titles), "views of one memory"


def test_the_peak_is_marked_and_listed():
    built = built_for("encoder")
    text = page(built)
    for svg, shown in zip(drawings(text), built.pictures.values(), strict=True):
        found = drawn_peak(shown)
        (mark,) = (path for path in svg.iter(f"{SVG}path") if path.get("class") == "peak")
        x = float(re.match(r"M([\d.]+) ", mark.get("d"))[1])
        assert int((x - arena._LEFT) / arena._WIDTH * len(shown.steps)) == found.step
        (words,) = (item.text for item in svg.iter(f"{SVG}text") if item.get("class") == "mark")
        assert words == f"step {found.step}: {found.nbytes:,} bytes alive"
    *_, table = re.findall(rf"<table><caption>Alive at step {found.step}.*?</table>", text, re.DOTALL)
    rows = [re.findall("<td>(.*?)</td>", row) for row in table.splitlines()[1:-1]]
    assert [(row[0].split(",")[0], row[2]) for row in rows] == [(s.name, f"{s.size:,}") for s in found.strips]
    assert [row[4] for row in rows] == [s.source for s in found.strips]


def test_only_the_highest_bucket_is_open():
    built = built_for("encoder")
    opened = re.findall(r"<details( open)?><summary>(.*?):", page(built))
    assert [title for is_open, title in opened if is_open] == ["batch=4, seq=16"]
    assert len(opened) == len(built.pictures)


def test_inputs_and_outputs_have_their_colours():
    (svg, *_) = drawings(page(built_for("linear")))
    kinds = {
        rect.findtext(f"{SVG}title").split(":")[0]: rect.get("class").split()[0] for rect in svg.iter(f"{SVG}rect")
    }
    assert kinds["x"] == "input" and "output" in kinds.values()
    for words in ("inputs, copied in", "outputs", "computed"):
        assert words in arena.legend()


def test_an_arena_with_nothing_in_it():
    text = arena.drawing("static", Picture(steps(2), 0, 64, ()), 10, True)
    assert "nothing lies in the arena" in text and "<svg" not in text
    assert drawn_peak(Picture(steps(2), 0, 64, ())) == DrawnPeak(0, 0, ())


# ---- a page that stays small, legible and safe ----------------------------------------------------------------------


def test_what_is_too_small_is_left_out_and_counted():
    count = 5_000
    long, dots = strip(64, 1 << 30, 0, count - 1), [strip(0, 1, step, step) for step in range(count)]
    shown = Picture(steps(count), (1 << 30) + 64, 64, (long, *dots))
    text = arena.drawing("big", shown, 100, False)
    assert len(boxes(*drawings(text))) == 1
    assert "Of 5,001 rectangles, 5,000 are too small to be seen and are left out; 0 of" in text


def test_the_smallest_of_many_have_no_name_but_are_drawn():
    count = 4_000
    strips = tuple(strip(64 * (step % 50), 64 - step % 7, step, step + 3) for step in range(0, count - 3))
    shown = Picture(steps(count), 64 * 50, 64, strips)
    text = arena.drawing("many", shown, 100, False)
    (svg,) = drawings(text)
    named = [read(title) for title in boxes(svg)]
    assert len(named) == 100 and all(size == 64 for _, size, _, _ in named), "the largest keep their names"
    (path,) = (path for path in svg.iter(f"{SVG}path") if path.get("class") == "inner")
    assert path.get("d").count("M") == len(strips) - 100
    assert f"{len(strips) - 100:,} of the smallest are drawn without a name" in text
    assert len(text) < 300_000


def test_hostile_names_are_text():
    wicked = "<script>alert('\"&')</script>\x01\udc80"
    shown = Picture((wicked, "b"), 64, 64, (strip(0, 64, 0, 1, name=wicked, source=wicked, dtype=wicked),))
    text = arena.drawing(wicked, shown, 10, True)
    assert "<script" not in text and "\x01" not in text
    text.encode()
    (svg,) = drawings(text)
    (title,) = boxes(svg)
    assert title.startswith("<script>alert('\"&')</script>??: ")
    assert [child.tag for child in svg.iter(f"{SVG}script")] == []


class _Balance(HTMLParser):
    """Every tag that opens closes, in order; links lead to pages of the report or within the page."""

    def __init__(self, names: set[str]):
        super().__init__()
        self.open: list[str] = []
        self.names = names

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "input"):
            self.open.append(tag)
        given = dict(attrs)
        assert not {"src", "style"} & set(given) and not any(name.startswith("on") for name in given)
        assert given.get("href", "#").startswith("#") or given["href"].removeprefix("../") in self.names

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("name", NAMES)
def test_a_browser_fetches_nothing_and_runs_what_the_policy_names(name):
    for text in report(*made_for(name)).values():
        (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        assert rules.pop("style-src") == digest(style)
        assert rules.pop("script-src", "") == " ".join(map(digest, scripts))
        assert (
            "default-src" in rules and set(rules.values()) == {"'none'"} and text.index(policy) < text.index("<title>")
        )
        assert len(re.findall("<script", text)) == len(scripts) + text.count('<script type="application/json"')


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_are_well_formed_and_lead_to_each_other(name):
    found = report(*made_for(name))
    for text in found.values():
        parser = _Balance(set(found))
        parser.feed(text)
        assert not parser.open
        assert text.count('aria-current="page"') == 1


@pytest.mark.long
def test_the_page_of_a_real_encoder_is_small():
    built, explained = planned(job_of(read_recipe(ROOT / "recipes" / "minilm.yaml")))
    text = page(built)
    assert sum(len(text.encode()) for text in report(built, explained).values()) < 1_500_000
    assert len(drawings(text)) == 15 and len(text.encode()) < 1_000_000
    assert "modeling_bert.py:" in text


def test_two_builds_write_the_same_pages(tmp_path):
    one, other = (aotair.build(RECIPES["encoder"], tmp_path / f"{turn}.aotair") for turn in "ab")
    names = sorted(str(file.relative_to(one)) for file in one.rglob("*.html"))
    assert names == ["report.html", "report/all-passes.html", "report/forward.html"]
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert b"<svg" in (one / "report" / "forward.html").read_bytes()


def test_the_front_page_leads_to_the_entry_points_and_says_what_is_promised():
    built = built_for("encoder")
    text = report(built)["report.html"]
    assert '<a href="report/forward.html">forward</a>' in text and "not proved" in text
    assert f"{promised(built.program).peak:,}" in text


# ---- the passes ------------------------------------------------------------------------------------------------------


def passes(*records: PassRecord) -> str:
    return passes_page("m", records, {"report/all-passes.html": "Passes"})


def record(changes: Sequence[Change] = (), accounts: Sequence[Account] = (), name="fuse", graph="") -> PassRecord:
    return PassRecord(name, len(changes), 10, 9, 0.25, tuple(accounts), graph, tuple(changes))


def change(number: int = 0, module: str = "layers", **parts: tuple[str, ...]) -> Change:
    given = {"above": ("a",), "before": (f"mul_{number} = b({number})",), "after": (f"c_{number}",), "below": ("d",)}
    return Change(f"{module}.{number}", **(given | parts))


def test_a_pass_is_shown_before_and_after():
    text = passes(record([change(3)], [Account(False, "n", "aten.add", "it has two users", "model.py:7, in forward")]))
    before, after = re.findall(r"<pre [^>]*>(.*?)</pre>", text, re.DOTALL)
    assert before == "a\n<del>mul_3 = b(3)</del>d\n" and after == "a\n<ins>c_3</ins>d\n"
    assert "<b>fuse</b>: 1 rewrite, 10 nodes before, 9 after, 1 place changed, 1 left alone" in text
    assert "<td>it has two users</td><td>model.py:7, in forward</td>" in text and "0.25" not in text


def test_a_real_pass_is_on_the_page_with_the_module_and_the_nodes():
    text = report(*made_for("encoder"))["report/all-passes.html"]
    (done,) = re.findall(r"<b>reinplace_inplaceable_ops</b>.*?</section>", text, re.DOTALL)
    assert re.search(r"<del>gelu: .*aten\.gelu\.default\(", done) and re.search(r"<ins>gelu: .*aten\.gelu_", done)


def test_what_repeats_from_layer_to_layer_is_shown_once():
    text = passes(record([change(number) for number in range(24)] + [change(0, "head")]))
    named = ", ".join(f"layers.{number}" for number in range(2))
    assert re.findall("<summary>(.*?)</summary>", text)[-2:] == [f"{named} and 22 more modules: 24 times", "head.0"]
    assert text.count("<del>") == 2


def test_what_a_pass_did_to_a_bucket_as_to_another_is_said_in_a_line():
    left = [Account(False, f"add_{size}", "aten.add", f"add_{size} has two users", "m.py:7") for size in (1, 2, 4)]
    text = passes(*(record([change(n)], [left[n]], graph=f"n={n}") for n in range(3)))
    assert text.count("<del>") == 1 and text.count("has two users") == 1
    assert text.count("The same as in the graph of n=0, but for numbers.") == 2


def test_a_page_of_passes_stays_small_and_says_what_is_left_out():
    lines = tuple("x" * 1_000 for _ in range(100))
    several = [change(0, "ab"[n % 2] * n, before=lines) for n in range(1, 200)]
    left = [Account(False, "n", "aten.add", "why", "line " * 1_000)]
    text = passes(record(several), record([change()], left, name="last"))
    assert len(text.encode()) < 3_500_000
    assert "more kinds of places are left out: the page would be too large" in text and "<b>last</b>" in text
    assert "1 kinds of reasons are left out" in text and "line line" not in text
    assert "… and 40 more lines" in text


def test_hostile_names_are_text_on_the_page_of_the_passes():
    wicked = "</pre><script>alert('\"&')</script>\x1b[2J\udc80"
    parts = dict.fromkeys(("above", "before", "after", "below"), (wicked,))
    accounts = [Account(False, wicked, wicked, wicked, wicked)]
    text = passes_page(wicked, [record([change(0, wicked, **parts)], accounts, wicked, wicked)], {})
    text.encode()
    assert text.count("<script") == 1 and "\x1b" not in text
    _Balance(set()).feed(text)
