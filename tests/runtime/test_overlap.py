"""Inputs that lie where a call writes: outputs handed to the next call, windows, shifts, other models' memory."""

import warnings

import pytest
import torch
from nodes import Node
from sequence_models import RECIPES
from sequences import load, original

import aotair
from aotair.builder import plan
from aotair.errors import RecipeError
from aotair_runtime.errors import ArgumentError, OutputHeldWarning, ShapeError
from aotair_runtime.memory.overlap import Spans, destroyed, same_place, span


def want(name: str, *inputs: torch.Tensor, entry: str = "forward", states: dict | None = None) -> list[torch.Tensor]:
    """What the original gives on clones of these inputs."""
    reference = original(name, entry)
    names = list(reference._names)
    return reference({n: tensor.detach().clone().cpu() for n, tensor in zip(names, inputs)}, states or {})


def same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, atol=1e-5, rtol=1e-4)


def rows(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 4)


# ---- what a call reads, it reads before it writes -----------------------------------------------------------------


def test_outputs_as_inputs_in_any_order(node: Node):
    model = load("mix", node)
    outputs = model.forward.flat([rows() for _ in range(4)])
    for order in ((0, 1, 2, 3), (1, 2, 0, 3), (3, 2, 1, 0), (2, 2, 0, 0), (1, 0, 3, 2)):
        given = [outputs[i] for i in order]
        wanted = want("mix", *given)
        outputs = model.forward.flat(given)
        same(outputs, wanted)


def test_parts_of_outputs_in_another_bucket(node: Node):
    model = load("mix", node)
    for size in (2, 1, 3, 4):
        outputs = model.forward.flat([rows() for _ in range(4)])
        given = [outputs[0][:size], outputs[2][4 - size :], outputs[1][:1].expand(size, 4), outputs[3][:size]]
        wanted = want("mix", *given)
        same(model.forward.flat(given), wanted)


def test_a_window_that_slides_over_its_own_output(node: Node):
    model, window = load("window", node), rows()
    for _ in range(5):
        new = rows(1)
        wanted = want("window", window, new)
        got = model.forward.flat([window, new])
        same(got, wanted)
        window = got[0]


def test_transposed_and_shifted_buffers_of_the_model(node: Node):
    model = load("square", node)
    buffers = model.inputs["static"]
    buffers["x"].copy_(rows())
    buffers["y"].copy_(rows())
    for given in (
        lambda: [buffers["y"], buffers["x"]],
        lambda: [buffers["x"].t(), buffers["x"]],
        lambda: [buffers["x"], buffers["y"].t()],
        lambda: [buffers["y"][1:2].expand(4, 4), buffers["y"]],
    ):
        inputs = given()
        wanted = want("square", *inputs)
        same(model.forward.flat(inputs), wanted)


def test_an_entry_points_outputs_in_another_one(node: Node):
    model = load("notebook", node)
    written = model.write(rows(), rows())
    for _ in range(3):
        page = {"page": model.state["page"].clone().cpu()}
        wanted = want("notebook", written[1], entry="read", states=page)
        read = model.read(written[1])
        same(read, wanted)
        wanted = want("notebook", read[1], read[0], entry="write", states=page)
        written = model.write(read[1], read[0])
        same(written, wanted)


@pytest.mark.parametrize("clone_input", [True, False])
def test_outputs_of_one_model_in_another_of_the_same_pool(node: Node, clone_input: bool):
    pool = aotair.graph_pool(node.kind)
    one, two = (load("square", node, pool=pool, clone_input=clone_input) for _ in range(2))
    x, y = rows(), rows()
    for _ in range(3):
        made = one.forward.flat([x, y])
        wanted = want("square", made[0], made[1])
        same(two.forward.flat([made[0], made[1]]), wanted)


def test_a_state_is_read_before_the_call_writes_it(node: Node):
    for clone_input in (True, False):
        model = load("memory", node, clone_input=clone_input)
        for _ in range(3):
            memory = model.state["memory"]
            wanted = want("memory", memory, states={"memory": memory.clone().cpu()})
            same(model.forward.flat([memory]), wanted)


def test_what_was_written_into_a_buffer_survives_a_capture_in_the_call(node: Node):
    model = load("mix", node, capture="lazy", enable_output_clone=True)
    for bucket in ("n=2", "n=4"):
        buffers = model.inputs[bucket]
        for buffer in buffers.values():
            buffer.copy_(torch.randn(buffer.shape))
        wanted = want("mix", *buffers.values())
        same(model.forward.flat(list(buffers.values())), wanted)


def test_a_new_cache_captures_anew_and_loses_no_input(node: Node):
    model = load("store", node, kept_graphs=1)
    buffers = model.inputs["n=4"]
    for _ in range(3):
        buffers["x"].copy_(rows())
        store = rows()
        wanted = want("store", buffers["x"], store)
        same(model.forward.flat([buffers["x"], store]), wanted)


# ---- what is used in place ----------------------------------------------------------------------------------------


def test_outputs_in_the_callers_memory_have_their_own_dtypes(node: Node):
    model = load("bits", node, clone_input=False)
    x, count = rows(), torch.tensor(7)
    for _ in range(2):
        got = model.forward.flat([x, count])
        assert got[0].dtype == torch.int32 and got[0].data_ptr() == x.data_ptr()
        same(got, want("bits", x, count))


def test_inputs_that_no_dtype_of_the_program_can_begin_at_are_copied(node: Node):
    model = load("wide", node, clone_input=False)
    for start in (1, 2, 1):
        x = torch.randn(9)[start : start + 4]
        same(model.forward.flat([x]), want("wide", x))


def test_a_mutated_input_shares_its_memory_with_nothing(node: Node):
    model, other = load("store", node), load("square", node)
    store, whole = rows(), torch.zeros(6, 4)
    output = other.forward.flat([rows(), rows()])[0]
    mine = model.forward.flat([rows(), store])[1]
    before = store.clone()
    for given, says in (
        ([store, store], r"the input 'x' shares memory .*pass x\.clone"),
        ([whole[1:3], whole[:4]], "the input 'x' shares memory"),
        ([store[1:2].expand(4, 4), store], "the input 'x' shares memory"),
        ([rows(), mine], r"the mutated input 'store' shares memory .*store\.clone"),
    ):
        for _ in range(2):
            with pytest.raises(ArgumentError, match=f"(?s){says}"):
                model.forward.flat(given)
    assert torch.equal(store, before), "a refused call changes nothing"
    with pytest.raises(ShapeError, match="used in place"):
        model.forward.flat([rows(), store.t()])
    x = rows()
    wanted = want("store", x, output)
    same(model.forward.flat([x, output]), wanted)  # another model's memory is the caller's


def test_two_mutated_inputs_share_no_memory(node: Node):
    model, one = load("stores", node), rows()
    with pytest.raises(ArgumentError, match="with another mutated input"):
        model.forward.flat([one, one])
    x, y = rows(), rows()
    wanted = want("stores", x, y)
    same(model.forward.flat([x, y]), wanted)


# ---- outputs that are held too long -------------------------------------------------------------------------------


def test_an_output_that_was_overwritten_and_is_passed_as_an_input_is_said(node: Node):
    pool = aotair.graph_pool(node.kind)
    encode, decode = (load("square", node, pool=pool) for _ in range(2))
    hidden = encode.forward.flat([rows(), rows()])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode.forward.flat([rows(), rows()])
    with pytest.warns(OutputHeldWarning, match="passed as an input") as caught:
        decode.forward.flat([rows(), hidden])
    assert caught[0].filename == __file__


def test_chains_of_calls_are_no_reason_to_warn(node: Node):
    pool = aotair.graph_pool(node.kind)
    encode, decode = (load("square", node, pool=pool) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = y = rows()
        for _ in range(5):
            hidden = encode.forward.flat([x, y])
            x, y = decode.forward.flat(hidden[:2])[:2]


# ---- the arithmetic of addresses ----------------------------------------------------------------------------------


def test_spans_are_those_of_the_elements():
    whole = torch.zeros(6, 4)
    start = whole.data_ptr()
    assert span(whole) == (start, start + 96) and span(whole[2:4]) == (start + 32, start + 64)
    assert span(whole.t()[1:3]) == (start + 4, start + 4 + (5 * 4 + 1) * 4 + 4)
    assert span(whole[:1].expand(9, 4)) == (start, start + 16) and span(whole[:0]) == (0, 0)


def test_spans_that_meet_are_found_and_those_that_touch_are_not():
    found = Spans([(10, 20), (30, 40), (0, 0)])
    assert [found.meets((a, a + 5)) for a in (4, 5, 6, 19, 20, 25, 26, 39, 40)] == [
        False, False, True, True, False, False, True, True, False,
    ]  # fmt: skip
    assert not found.meets((15, 15)) and found.meets((0, 100)) and not Spans([]).meets((0, 9))


def test_only_what_would_be_destroyed_is_set_aside():
    whole = torch.zeros(8, 4)
    a, b = whole[:2], whole[2:4]
    assert destroyed([a, b], [a, b], []) == []  # each lies in its own place
    assert destroyed([b, a], [a, b], []) == [0, 1]
    assert destroyed([whole[4:6], a], [a, b], []) == [1]
    assert destroyed([whole[1:3], whole[6:]], [a, b], []) == [0]
    assert destroyed([whole[6:], whole[7:8]], [a, whole[2:3]], [(1, whole[7:8])]) == [0, 1]
    assert destroyed([a, whole[2:3]], [a, whole[2:3]], [(1, whole[3:4])]) == []
    assert not same_place(torch.zeros(2, dtype=torch.complex64).conj(), torch.zeros(2, dtype=torch.complex64))


# ---- outputs that are the caller's to keep --------------------------------------------------------------------------


def test_an_output_that_the_recipe_wants_cloned_is_kept(node: Node):
    model = load("kept", node)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held = [(x, model(x)["kept"]) for x in (rows() for _ in range(4))]
        for x, kept in held:
            torch.testing.assert_close(kept, x * 2)
        assert model(rows())["passing"].data_ptr() == model(rows())["passing"].data_ptr()
    outputs = next(item for item in model.promise.items if "kept by the caller" in item.name)
    assert outputs.nbytes == 4 * 4 * 4


def test_an_unknown_output_is_refused():
    for wrong in ("nothing", 2, -1):
        recipe = RECIPES["kept"] | {"outputs": {wrong: {"clone": True}}}
        with pytest.raises(RecipeError, match=r"(?s)outputs\..*a number below 2, or one of kept, passing"):
            plan(recipe)


def test_a_copy_that_the_model_returns_is_one_though_inputs_are_used_in_place(node: Node):
    model = load("copies", node, clone_input=False, enable_output_clone=False)
    a, b = rows(), rows()
    before = b.clone()
    copied = model.forward.flat([a, b])[0]
    b.zero_()
    torch.testing.assert_close(copied, before)
