"""Scopes and events: where nodes run, what waits for what, which hazards are found, and what memory may be shared."""

import logging

import pytest
import torch
from cases import RECIPES
from graphs import run_pass, targets, trace

import aotair
from aotair.errors import GraphError
from aotair.graph.show import show
from aotair.ops import air
from aotair.passes import reinplace_inplaceable_ops, reinplace_input_mutated_ops, streams
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Form

ops = torch.ops.air


def enter(label: str = "side", priority: int | None = None) -> None:
    keys, values = ["_user_stream_label"], [label]
    if priority is not None:
        keys, values = [*keys, "_user_stream_priority"], [*values, str(priority)]
    ops.scope_enter(keys, values)


def leave() -> None:
    ops.scope_exit()


def streams_of(module) -> dict[str, int]:
    return {n.name: streams.stream_of(n) for n in module.graph.nodes if n.op == "call_function"}


X = torch.ones(3, 3)


def _plain(x):
    enter()
    y = x @ x
    leave()
    return (y + 1,)


def test_a_scope_becomes_a_stream_that_forks_and_joins():
    module = trace(_plain, X)
    edits = run_pass(streams, module)
    assert edits.count == 1, "the use of y on the main stream is a hazard"
    names = [str(n.target).removeprefix("air.tagged_event_") for n in module.graph.nodes if "event" in n.meta]
    assert names == ["record.default", "wait.default", "record.default", "wait.default"]
    assert streams_of(module)["mm"] == 1 and streams_of(module)["add"] == 0
    assert not any("scope" in name for name in targets(module))


def test_scopes_nest_and_streams_are_found_again_by_label():
    def function(x):
        enter("a")
        y = x @ x
        enter("b")
        z = y @ x
        leave()
        w = z @ x
        leave()
        enter("b", priority=-1)
        v = w @ x
        leave()
        return (v + 1,)

    module = trace(function, X)
    run_pass(streams, module)
    found = streams_of(module)
    assert [found[name] for name in ("mm", "mm_1", "mm_2", "mm_3", "add")] == [1, 2, 1, 2, 0]
    assert module.graph.output_node().meta["streams"] == 3


def test_priorities_are_kept():
    def function(x):
        enter("a", priority=-1)
        y = x @ x
        leave()
        return (y + 1,)

    module = trace(function, X)
    run_pass(streams, module)
    assert module.graph.output_node().meta["priorities"] == (0, -1)


def test_scopes_that_do_not_pair_are_refused_in_torchairs_words():
    def open_one(x):
        enter()
        return (x + 1,)

    def close_one(x):
        leave()
        return (x + 1,)

    with pytest.raises(GraphError, match=r"no paired call to the torch\.ops\.air\.scope_exit operator"):
        run_pass(streams, trace(open_one, X))
    with pytest.raises(GraphError, match=r"you must first call the torch\.ops\.air\.scope_enter operator"):
        run_pass(streams, trace(close_one, X))


def _waits_on_record(x):
    enter()
    y = x @ x
    done = ops.record()
    leave()
    ops.wait([done])
    return (y + 1,)


def _waits_on_node(x):
    enter()
    y = x @ x
    leave()
    ops.wait([y])
    return (y + 1,)


def _waits_on_view(x):
    enter()
    y = (x @ x).view(9)
    leave()
    ops.wait([y])
    return (y + 1,)


def _waits_on_tag(x):
    enter()
    y = x @ x
    ops.tagged_event_record("done")
    leave()
    ops.tagged_event_wait("done")
    ops.record_tagged_stream(y, "side")
    return (y + 1,)


@pytest.mark.parametrize("function", [_waits_on_record, _waits_on_node, _waits_on_view, _waits_on_tag])
@pytest.mark.parametrize("hazards", ["repair", "refuse", "allow"])
def test_what_waits_needs_no_repair(function, hazards):
    module = trace(function, X)
    assert run_pass(streams, module, hazards=hazards).count == 0
    assert all("event" in n.meta for n in module.graph.nodes if "air" in str(n.target))


def test_an_event_that_nobody_recorded_is_refused():
    def function(x):
        ops.tagged_event_wait("never")
        return (x + 1,)

    with pytest.raises(GraphError, match="before it is recorded"):
        run_pass(streams, trace(function, X))


def _reads_what_is_overwritten(x):
    enter()
    y = x @ x
    leave()
    torch.ops.aten.copy_.default(x, x + 1)
    ops.wait([y])
    return (y + 1,)


def _writes_twice(x):
    y = x * 2
    enter()
    y.add_(1)
    leave()
    y.mul_(3)
    return (y,)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_plain, "add on stream 0 uses what it makes: mm on stream 1"),
        (_reads_what_is_overwritten, "copy_ on stream 0 overwrites what it reads: mm on stream 1"),
        (_writes_twice, "uses what it makes"),
    ],
)
def test_hazards_are_repaired_refused_or_allowed(function, says, caplog):
    module = trace(function, X)
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        assert run_pass(streams, module).count >= 1
    assert says in caplog.text, "a repair is logged"
    with pytest.raises(GraphError) as caught:
        run_pass(streams, trace(function, X), hazards="refuse")
    assert says in str(caught.value)
    module = trace(function, X)
    edits = run_pass(streams, module, hazards="allow")
    assert edits.count == 0 and edits.accounts


@pytest.mark.parametrize("function", [_plain, _waits_on_tag, _reads_what_is_overwritten, _writes_twice])
def test_a_second_run_changes_nothing(function):
    module = trace(function, X)
    run_pass(streams, module)
    before = show(module), streams_of(module)
    assert run_pass(streams, module).count == 0
    assert (show(module), streams_of(module)) == before


def test_reinplacing_is_skipped_for_the_whole_graph_and_that_is_said(caplog):
    def function(x):
        enter()
        y = x @ x
        leave()
        return ((y + 1).relu(),)

    for step in (reinplace_inplaceable_ops, reinplace_input_mutated_ops):
        module = trace(function, X)
        run_pass(streams, module)
        before = targets(module)
        with caplog.at_level(logging.INFO, logger="aotair"):
            assert run_pass(step, module).count == 0
        assert targets(module) == before
        assert f"{step.__name__.rpartition('.')[2]}: skipped, because the graph has several streams" in caplog.text


def test_the_air_ops_have_torchairs_schemas_and_are_defined_once():
    air.define()
    schemas = {
        name: str(getattr(ops, name).default._schema) for name in ("scope_enter", "scope_exit", "record", "wait")
    }
    assert schemas == {
        "scope_enter": "air::scope_enter(str[] keys, str[] values, bool need_execute=False) -> ()",
        "scope_exit": "air::scope_exit(bool need_execute=False) -> ()",
        "record": "air::record(*, Device? device=None) -> Tensor",
        "wait": "air::wait(Tensor[] x) -> ()",
    }


# ---- whole artifacts ------------------------------------------------------------------------------------------------


def test_the_document_s_example_becomes_a_program_of_two_streams(built):
    program = read_program(built("streams"))
    bucket = program.entry_points[0].buckets[0]
    code = [program.instructions[number] for number in bucket.code]
    assert bucket.streams == 2 and {i.stream for i in code} == {0, 1}
    add = next(number for number, i in enumerate(code) if i.node.startswith("add"))
    assert code[add - 1].form == Form.WAIT and code[add - 1].stream == 0, "the hazard is repaired"


def test_buffers_of_unordered_steps_do_not_overlay(built):
    """Two buffers may share bytes only where every use of one comes before the other is made: on all streams."""
    program = read_program(built("branches"))
    bucket = program.entry_points[0].buckets[0]
    assert bucket.streams == 4
    one = aotair.build(RECIPES["branches"] | {"config": {}}, built("branches").parent / "one.aotair")
    assert bucket.height >= read_program(one).entry_points[0].buckets[0].height


def test_programs_of_several_streams_answer_like_the_original(node, original):
    for name, shapes in (("streams", [(4, 4), (8, 8)]), ("branches", [(6, 6)])):
        model, reference = node.load(name, enable_output_clone=True), original(name)
        for shape in shapes:
            x, cache = torch.randn(shape), torch.randn(6, 6)
            rest = [cache] if name == "branches" else []
            theirs = [tensor.clone() for tensor in rest]
            for got, want in zip(model(x, *rest), reference(x, *theirs), strict=True):
                torch.testing.assert_close(got, want)
            for mine, wanted in zip(rest, theirs):
                torch.testing.assert_close(mine, wanted)


# ---- what else TorchAir has ------------------------------------------------------------------------------------------


class Speaks(torch.nn.Module):
    """Says in its own code where it runs, as TorchAir's scopes let it."""

    def forward(self, x: torch.Tensor):
        enter()
        product = x @ x
        ops.record_tagged_stream_(product, "side")
        leave()
        return ops.wait_tensor(x - 1, product) + 1, product.abs()


def code_of(program) -> list:
    return [program.instructions[number] for number in program.entry_points[0].buckets[0].code]


def test_a_model_that_speaks_of_streams_itself(tmp_path):
    built = aotair.build(model=Speaks(), inputs={"x": X}, out=tmp_path / "a.aotair")
    forms = [instruction.form for instruction in code_of(read_program(built))]
    assert forms.count(Form.RECORD) == forms.count(Form.WAIT) >= 2
    x = torch.randn(3, 3)
    for got, want in zip(aotair.load(built)(x), Speaks()(x), strict=True):
        assert torch.equal(got, want)


def test_wait_tensor_is_a_wait_and_the_tensor_itself():
    module = trace(_plain, X)
    graph = module.graph
    product, added = (
        graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)[0],
        graph.output_node().args[0][0],
    )
    with graph.inserting_before(added):
        waits = graph.call_function(ops.wait_tensor.default, (added.args[0], product))
    added.args = (waits, 1)
    with graph.inserting_before(added):
        of_input = graph.call_function(ops.wait_tensor.default, (waits, product.args[0]))
        graph.call_function(ops.record_tagged_stream_.default, (of_input, "side"))
    air.in_plain_words(graph)
    assert added.args == (product, 1)
    assert targets(module).count("air.wait.default") == 1, "an input is there"
    assert targets(module).count("air.record_tagged_stream.default") == 1
    assert run_pass(streams, module, hazards="refuse").count == 0
    assert all("event" in node.meta for node in graph.nodes if "air" in str(node.target))


@pytest.mark.long
def test_a_scope_that_the_pre_pass_opens_and_the_post_pass_closes(tmp_path):
    def opens(gm, example_inputs, config):
        (first, *_) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default)
        with gm.graph.inserting_before(first):
            gm.graph.call_function(ops.scope_enter.default, (["_user_stream_label"], ["side"]))

    def closes(gm, example_inputs, config):
        (*_, last) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default)
        with gm.graph.inserting_after(last):
            gm.graph.call_function(ops.scope_exit.default)

    passes = {"post_grad_custom_pre_pass": opens, "post_grad_custom_post_pass": closes}
    program = read_program(aotair.build(RECIPES["encoder"], tmp_path / "a.aotair", **passes))
    assert {instruction.stream for instruction in code_of(program)} == {0, 1}
    with pytest.raises(GraphError, match="no paired call"):
        aotair.build(RECIPES["encoder"], tmp_path / "b.aotair", post_grad_custom_pre_pass=opens)
    with pytest.raises(GraphError, match="you must first call"):
        aotair.build(RECIPES["encoder"], tmp_path / "b.aotair", post_grad_custom_post_pass=closes)
