"""The graph on an entry point's page: which modules hold which calls, what is alike, what is read; and it is data."""

import json
import re
from dataclasses import replace

import pytest
from cases import RECIPES

import aotair
from aotair.diff.flow import Source, Step, constant_names
from aotair.report import drawing
from aotair.report.tree import Module, tree
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.format.debug_data import DebugData, Made


def step(module: str, op: str = "aten::mul.out", said: str = "float32[2]") -> Step:
    return Step(op, said, (), ("float32[2]",), 0, "n", made=Made(module=module))


def shown(part: int | Module) -> object:
    if isinstance(part, int):
        return part
    name = f"{part.name} ({part.alike})" if part.alike else part.name
    return {name: [shown(inner) for inner in part.parts]}


def parts(*modules: str | Step) -> list[object]:
    return [shown(part) for part in tree([one if isinstance(one, Step) else step(one) for one in modules]).parts]


def test_calls_lie_in_their_modules_in_order():
    assert parts("a", ".", "a.b", "", "c") == [{"a": [0, {"b": [2]}]}, 1, 3, {"c": [4]}]


def test_a_module_of_one_other_is_shown_as_that():
    assert parts("a.b.c", "a.b.c", "d") == [{"a.b.c": [0, 1]}, {"d": [2]}]


def test_layers_that_are_alike_are_one():
    layers = [f"h.{number}.{part}" for number in range(3) for part in ("x", "y")]
    inner = [{str(number): [{"x": [2 * number]}, {"y": [2 * number + 1]}]} for number in range(3)]
    assert parts(*layers) == [{"h": [{"0 to 2 (3)": inner}]}]
    assert tree([step(layer) for layer in layers]).calls == 6


@pytest.mark.parametrize(
    "other", [step("h.1", "aten::add.out"), step("h.1", said="float32[4]"), step("h.1.deeper"), step("h.one")]
)
def test_layers_that_differ_are_apart(other: Step):
    ((layers,),) = (list(part.values()) for part in parts("h.0", other, "h.2"))
    assert len(layers) == 3


def test_the_same_op_written_in_place_is_alike():
    assert parts(step("h.0", "aten::mul_.Tensor"), step("h.1")) == [{"h": [{"0 to 1 (2)": [{"0": [0]}, {"1": [1]}]}]}]


def page_of(name: str, built, made: Made | None = None, program_name: str = "m") -> str:
    artifact = open_artifact(built(name))
    debug = read_debug_data(artifact)
    if made is not None:
        debug = DebugData(tuple(made for _ in debug.made))
    program = replace(artifact.program, name=program_name)
    return drawing.drawing(program, program.entry_points[0], constant_names(program), debug)


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="graph">(.*?)</script>', text, re.DOTALL)[1])


def calls_in(module: dict) -> list[int]:
    return [n for part in module["parts"] for n in ([part] if isinstance(part, int) else calls_in(part))]


def test_every_call_is_drawn_once_and_says_where_it_comes_from(built):
    text = page_of("encoder", built)
    data = data_of(text)
    assert sorted(calls_in(data["model"])) == list(range(len(data["calls"])))
    assert "The graph of forward, batch=4, seq=16." in text
    rows = [[*(data["texts"][number] for number in call[:7]), *call[7:]] for call in data["calls"]]
    assert (
        [row[0] for row in rows[:2]] == ["ids", "mask"]
        and data["inputs"] == 2
        and rows[-1][0] == "outputs"
        and rows[-1][-1]
    )
    (gelu,) = (row for row in rows if row[0].startswith("gelu"))
    assert re.fullmatch(r"models\.py:\d+, in forward", gelu[5]) and "reinplace" in gelu[6]
    (read,) = gelu[-1]
    assert rows[read][3].endswith("up.weight"), "and weights are named, not drawn"
    assert all(read < number for number, row in enumerate(rows) for read in row[-1])


def test_what_lies_in_states_by_the_end_is_not_an_output(built):
    rows = data_of(page_of("counter", built))
    ends = [rows["texts"][call[4]] for call in rows["calls"]]
    assert any(ends), "a call names the state that it reads"
    lasting = Step("return", "", ((Source(("what lasts", "s")), Source(0)), (Source(1),)), (), -1, "the end")
    assert drawing._origins(lasting) == [1]


def test_hostile_names_are_data(built):
    wicked = "</script><!--<script>alert(1)</script>\x1b\udc80"
    text = page_of("encoder", built, Made(wicked, wicked, wicked), wicked)
    text.encode()
    assert text.count("<script") == 1 and "<!--" not in text and "\x1b" not in text
    assert any("</script><!--" in said for said in data_of(text)["texts"])


def test_a_graph_that_is_too_large_is_not_drawn(built, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "_MOST", 3)
    text = page_of("encoder", built)
    assert "more than 3 are not drawn here: Model Explorer opens them" in text and "<script" not in text


def test_an_artifact_without_debugging_data_is_drawn_flat(built):
    artifact = open_artifact(built("encoder"))
    names = constant_names(artifact.program)
    text = drawing.drawing(artifact.program, artifact.program.entry_points[0], names, DebugData())
    assert all(isinstance(part, int) for part in data_of(text)["model"]["parts"])


def test_a_program_of_another_artifact_has_a_page_without_passes_and_arenas(tmp_path):
    first = aotair.build(RECIPES["encoder"], tmp_path / "a.aotair")
    again = aotair.build(RECIPES["encoder"], tmp_path / "b.aotair", like=first)
    assert sorted(page.name for page in again.rglob("*.html")) == ["forward.html", "report.html"]
    text = (again / "report" / "forward.html").read_text()
    assert data_of(text) == data_of((first / "report" / "forward.html").read_text()) and 'class="arena"' not in text
