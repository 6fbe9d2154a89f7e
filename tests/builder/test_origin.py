"""Where calls come from: the user's line, the module and the passes that made them, from export to the artifact."""

from pathlib import Path

import torch

import aotair
from aotair.graph import origin
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact

aten = torch.ops.aten


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.linear(x)))


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * 2 + 1


def build(tmp_path: Path, **parts: object) -> Path:
    inputs = {"x": {"shape": ["batch", 4], "dtype": "float32"}}
    model = Stack().eval()
    return aotair.build(None, tmp_path / "s.aotair", model=model, inputs=inputs, buckets={"batch": [2, 3]}, **parts)


def origins(path: Path) -> dict[str, set[tuple[str, str, str]]]:
    """By op, where its instructions come from."""
    artifact = open_artifact(path)
    data, found = read_debug_data(artifact), {}
    for number, item in enumerate(artifact.program.instructions):
        made = data.of(number)
        found.setdefault(artifact.program.ops[item.op].name, set()).add((made.line, made.module, made.passes))
    return found


def line(text: str) -> str:
    number = 1 + Path(__file__).read_text().splitlines().index(text)
    return f"{Path(__file__).name}:{number}, in forward"


def test_each_instruction_has_its_line_its_module_and_what_made_it(tmp_path: Path):
    found = origins(build(tmp_path))
    inner = line("        return self.norm(torch.relu(self.linear(x)))")
    last = line("        return x * 2 + 1")
    linear = next(places for op, places in found.items() if "linear" in op or "addmm" in op)
    assert {(at, module) for at, module, _ in linear} == {
        (inner, "blocks.0.linear"),
        (inner, "blocks.1.linear"),
    }
    norm = next(places for op, places in found.items() if "layer_norm" in op)
    assert {module for _, module, _ in norm} == {"blocks.0.norm", "blocks.1.norm"}
    relu = found["aten::relu_"]
    assert relu == {(inner, f"blocks.{n}", "reinplace_inplaceable_ops") for n in range(2)}
    assert found["aten::add.out" if "aten::add.out" in found else "aten::add_.Tensor"] == {
        (last, ".", "reinplace_inplaceable_ops")
    }


def test_a_pass_of_the_users_own_is_named_and_what_it_makes_has_a_place(tmp_path: Path):
    def negates_twice(gm: torch.fx.GraphModule, example_inputs: object, config: object) -> None:
        (node,) = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        with gm.graph.inserting_after(node):
            once = gm.graph.call_function(aten.neg.default, (node,))
        with gm.graph.inserting_after(once):
            twice = gm.graph.call_function(aten.neg.default, (once,))
        once.meta["val"] = twice.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not once)

    found = origins(build(tmp_path, post_grad_custom_post_pass=negates_twice))
    last = line("        return x * 2 + 1")
    negations = set().union(*(places for op, places in found.items() if "::neg" in op))
    assert {(at, module) for at, module, _ in negations} == {(last, ".")}
    assert all(passes.startswith("post_grad_custom_post_pass") for _, _, passes in negations) and negations


def test_what_a_pass_adds_takes_the_place_of_what_it_reads_or_what_reads_it():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(aten.neg.default, (x,))
    there = graph.call_function(aten.neg.default, (first,))
    there.meta |= {
        "stack_trace": '  File "/home/me/model.py", line 3, in forward\n',
        "nn_module_stack": {"k": ("a.b", 1)},
    }
    before = origin.calls(graph)
    after = graph.call_function(aten.exp.default, (there,))
    there.target = aten.abs.default
    graph.output(after)
    origin.mark(graph, before, "one")
    origin.mark(graph, origin.calls(graph), "another")
    assert [origin.passes_of(node) for node in (first, there, after)] == ["export", "one", "one"]
    assert {origin.line_of(node) for node in (first, there, after)} == {"model.py:3, in forward"}
    assert {origin.module_of(node) for node in (first, there, after)} == {"a.b"}
    assert origin.module_of(x) == origin.line_of(x) == ""


def test_passes_are_told_one_after_another():
    graph = torch.fx.Graph()
    node = graph.call_function(aten.zeros.default, ([1],))
    origin.mark(graph, {}, "one")
    for name, target in (("two", aten.ones.default), ("two", aten.empty.memory_format), ("three", aten.rand.default)):
        before = origin.calls(graph)
        node.target = target
        origin.mark(graph, before, name)
    assert origin.passes_of(node) == "one, two, three"


def test_a_second_checkpoint_keeps_what_is_known_of_the_program(tmp_path: Path):
    inputs = {"x": {"shape": ["batch", 4], "dtype": "float32"}}
    factory = {"factory": f"{__name__}:Stack"}
    parts = {"inputs": inputs, "buckets": {"batch": [2, 3]}, "model": factory, "name": "s"}
    first = aotair.build(parts, tmp_path / "one.aotair")
    second = aotair.build({**parts, "name": "t"}, tmp_path / "two.aotair", like=first)
    one, two = (read_debug_data(open_artifact(path)) for path in (first, second))
    assert one == two and len(one.made) > 0
