"""States that one model exports and another imports: the numbers go on where they were, elsewhere; what does not fit
changes nothing and is refused in one sentence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cases import RECIPES, notes
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import Node
from rank_processes import said, started

import aotair
from aotair_runtime import Model
from aotair_runtime.errors import ArgumentError, ClosedError, HandoverError
from aotair_runtime.handover import checked, division, place_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """The artifact of `notes` with some arguments for a device, built once."""
    folder, found = tmp_path_factory.mktemp("notes"), {}

    def get(kind: str = "cpu", **kwargs: object) -> Path:
        key = (kind, *sorted(kwargs.items()))
        if key not in found:
            with torch.device("cpu"):
                recipe = notes(**kwargs) | {"target": {"device": kind}}
                found[key] = aotair.build(recipe, folder / f"{len(found)}.aotair")
        return found[key]

    return get


def write(model: Model, number: int, slots: list[int]) -> torch.Tensor:
    """A call that writes row `number % 4` of some slots' pages."""
    torch.manual_seed(number)
    with torch.device("cpu"):
        given = torch.randn(len(slots), 4), torch.full((len(slots),), number % 4), torch.tensor(slots)
    return model(*(tensor.to(model.device) for tensor in given)).cpu()


def held(model: Model) -> dict[str, torch.Tensor]:
    return {name: state.cpu().clone() for name, state in model.state.items()}


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def test_sequences_go_on_in_other_slots_of_another_model(node: Node, made, tmp_path: Path):
    path, file = made(node.kind), tmp_path / "states.safetensors"
    with aotair.load(path, device=node.kind, enable_output_clone=True) as first:
        for number in range(3):
            write(first, number, [2, 0, 3])
        before = held(first)
        exported = first.export_state([0, 3])
        assert same(held(first), before)
        assert exported["state.pages"].shape == (2, 6, 4) and exported["state.last"].shape == (2, 1, 4)
        assert all(tensor.device.type == "cpu" for tensor in exported.values())
        safetensors.torch.save_file(exported, file)
        want = [write(first, number, [0, 3]) for number in range(3, 6)]
    assert same(exported, safetensors.torch.load_file(file)), "what was exported is no view of the states"
    with aotair.load(path, device=node.kind, enable_output_clone=True) as second:
        places = [state.data_ptr() for state in second.state.values()]
        write(second, 7, [0, 1, 2])
        before = held(second)
        second.import_state(safetensors.torch.load_file(file), [3, 1])
        after = held(second)
        for slot in (0, 2, 4):  # 4 is the one for padding
            assert torch.equal(after["pages"].view(5, 6, 4)[slot], before["pages"].view(5, 6, 4)[slot])
            assert torch.equal(after["last"][slot], before["last"][slot])
        assert [state.data_ptr() for state in second.state.values()] == places
        got = [write(second, number, [3, 1]) for number in range(3, 6)]
    assert all(map(torch.equal, got, want))


def test_the_first_rows_alone_go_where_slots_are_longer(made):
    with aotair.load(made()) as short, aotair.load(made(writers=5, length=9, spare=False)) as long:
        for number in (0, 1):
            write(short, number, [1, 3])
        for state in long.state.values():
            state.fill_(5)
        exported = short.export_state([3, 1], rows=2)
        assert exported["state.pages"].shape == (2, 2, 4) and exported["state.last"].shape == (2, 1, 4)
        with pytest.raises(ArgumentError, match="cannot be divided into 5"):
            long.import_state(exported, [2, 0])
        long.import_state(exported, [2, 0], parts=6)
        pages, source = long.state["pages"].view(6, 9, 4), short.state["pages"].view(5, 6, 4)
        assert torch.equal(pages[2, :2], source[3, :2]) and torch.equal(pages[0, :2], source[1, :2])
        assert (pages[:, 2:] == 5).all() and (pages[[1, 3, 4, 5]] == 5).all()
        assert torch.equal(long.state["last"][[2, 0]], short.state["last"][[3, 1]])


@pytest.mark.parametrize("slots", [[], [4], [-1], [1, 1], [True], [1.0], "0", 3, None, torch.tensor([1])])
def test_slots_that_are_none(made, slots):
    with aotair.load(made()) as model:
        exported, before = model.export_state([1]), held(model)
        with pytest.raises(ArgumentError, match="slots"):
            model.export_state(slots)
        with pytest.raises(ArgumentError, match="slots"):
            model.import_state(exported, slots)
        assert same(held(model), before)


@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": 1.5}, {"rows": True}, {"parts": 0}, {"parts": "5"}])
def test_numbers_that_are_none(made, options: dict):
    with aotair.load(made()) as model, pytest.raises(ArgumentError, match=f"^{next(iter(options))} is no number"):
        model.export_state([0], **options)


def test_more_rows_than_there_are_is_all(made):
    with aotair.load(made()) as model:
        assert model.export_state([0], rows=100)["state.pages"].shape == (1, 6, 4)


def test_models_without_states_or_without_slots(built):
    with aotair.load(built("encoder")) as model, pytest.raises(ArgumentError, match="no states"):
        model.export_state([0])
    with aotair.load(built("counter")) as model:
        model(torch.ones(2, 4))
        with pytest.raises(ArgumentError, match="nothing says into how many slots") as caught:
            model.export_state([0])
        assert "parts=" in caught.value.fix
        exported = model.export_state([0], parts=1)
        model.reset_state()
        assert not same(held(model), before := {n[6:]: t[0] for n, t in exported.items() if n != "about"})
        model.import_state(exported, [0], parts=1)
        assert same({n: t.flatten() for n, t in held(model).items()}, {n: t.flatten() for n, t in before.items()})


def test_a_closed_model(made):
    model = aotair.load(made())
    exported = model.export_state([0])
    model.close()
    with pytest.raises(ClosedError):
        model.export_state([0])
    with pytest.raises(ClosedError):
        model.import_state(exported, [0])


def about(**said: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)


RAW = torch.frombuffer(bytearray(b"{"), dtype=torch.uint8)
DEEP = torch.frombuffer(bytearray(b"[" * 1000), dtype=torch.uint8)
WRONG = {
    "nothing": lambda good: {},
    "a state is missing": lambda good: {n: t for n, t in good.items() if n != "state.last"},
    "one more": lambda good: good | {"state.other": good["state.last"]},
    "a name that is none": lambda good: good | {7: good["state.last"]},
    "dtype": lambda good: good | {"state.pages": good["state.pages"].double()},
    "rows": lambda good: good | {"state.pages": good["state.pages"][:, :5]},
    "too many rows": lambda good: good | {"state.pages": good["state.pages"].repeat(1, 2, 1)},
    "too many slots": lambda good: {n: t if n == "about" else t.repeat(2, 1, 1) for n, t in good.items()},
    "width": lambda good: good | {"state.last": good["state.last"][..., :3]},
    "one dimension": lambda good: good | {"state.last": good["state.last"].flatten()},
    "no dimension": lambda good: good | {"state.last": torch.tensor(1.0)},
    "no rows": lambda good: (
        good | {"state.pages": good["state.pages"][:, :0], "about": about(version=1, whole=False, place="")}
    ),
    "no memory": lambda good: good | {"state.pages": good["state.pages"].to("meta")},
    "sparse": lambda good: good | {"state.pages": good["state.pages"].to_sparse()},
    "no about": lambda good: {n: t for n, t in good.items() if n != "about"},
    "about of floats": lambda good: good | {"about": good["about"].float()},
    "about in two dimensions": lambda good: good | {"about": good["about"][None]},
    "about without end": lambda good: good | {"about": torch.zeros(1, dtype=torch.uint8).expand(1 << 30)},
    "about without memory": lambda good: good | {"about": good["about"].to("meta")},
    "no JSON": lambda good: good | {"about": RAW},
    "deep JSON": lambda good: good | {"about": DEEP},
    "another version": lambda good: good | {"about": about(version=2, whole=True, place="")},
    "no version": lambda good: good | {"about": about(whole=True, place="")},
    "whole is a number": lambda good: good | {"about": about(version=1, whole=1, place="")},
    "no place": lambda good: good | {"about": about(version=1, whole=True)},
    "another place": lambda good: good | {"about": about(version=1, whole=True, place="tp 1 of 2")},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_changes_nothing(made, name: str):
    with aotair.load(made()) as model:
        good, before = model.export_state([1]), held(model)
        with pytest.raises(HandoverError):
            model.import_state(WRONG[name]({n: t + 1 if n != "about" else t for n, t in good.items()}), [2])
        assert same(held(model), before)


@pytest.mark.parametrize("given", [None, 3, [torch.zeros(1)], {"about": b"{}"}, {"about": None}])
def test_what_is_no_dictionary_of_tensors(made, given):
    with aotair.load(made()) as model, pytest.raises(ArgumentError, match="what export_state gave"):
        model.import_state(given, [2])


def test_values_that_were_made_with_gradients(made):
    with aotair.load(made()) as model:
        good = {n: t if n == "about" else (t + 1).requires_grad_() for n, t in model.export_state([1]).items()}
        model.import_state(good, [2])
        assert (model.state["last"][2] == 1).all() and not model.state["last"].requires_grad


def test_states_of_another_model(made):
    with aotair.load(made()) as model, aotair.load(made(pages="float16")) as half:
        with pytest.raises(HandoverError, match="the state pages does not fit") as caught:
            half.import_state(model.export_state([0]), [0])
        assert "torch.float16" in caught.value.expected and "torch.float32" in caught.value.got
    with aotair.load(made()) as model, aotair.load(made(length=5)) as shorter:
        with pytest.raises(HandoverError, match="does not fit") as caught:
            shorter.import_state(model.export_state([0]), [0])
        assert "rows=" in caught.value.fix
        shorter.import_state(model.export_state([0], rows=5), [0])


texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
abouts = (
    st.binary(max_size=60)
    | texts.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries(
        {}, optional={"version": st.just(1) | texts, "whole": st.booleans() | texts, "place": st.just("") | texts}
    ).map(lambda value: json.dumps(value).encode())
)
tensors = st.builds(
    lambda shape, dtype: torch.ones(shape, dtype=dtype),
    st.lists(st.sampled_from([0, 1, 2, 4, 6]), max_size=4),
    st.sampled_from([torch.float32, torch.int8, torch.bfloat16, torch.complex64, torch.bool]),
)


@settings(deadline=None, max_examples=300)
@given(said=abouts, pages=tensors | st.none(), last=tensors | st.none(), slots=st.lists(st.integers(-1, 5), max_size=3))
def test_whatever_comes_is_taken_whole_or_refused(made, said, pages, last, slots):
    with aotair.load(made()) as model:
        given = {"about": torch.tensor(list(said), dtype=torch.uint8)}
        given |= {name: value for name, value in (("state.pages", pages), ("state.last", last)) if value is not None}
        before = held(model)
        try:
            model.import_state(given, slots)
        except (ArgumentError, HandoverError):
            assert same(held(model), before)
            return
        for number, slot in enumerate(slots):
            assert torch.equal(model.state["pages"].view(5, 6, 4)[slot, : pages.shape[1]], pages[number])
            assert torch.equal(model.state["last"][slot], last[number, 0])


@pytest.mark.parametrize("most", [0.0, -5.0, 1e30, float("inf"), float("nan"), 0.5])
def test_a_range_that_an_enemy_wrote_divides_nothing(made, most: float):
    with aotair.load(made()) as model:
        (entry,) = model.program.entry_points
        inputs = tuple(replace(one, value_range=(0.0, most)) if one.name == "slots" else one for one in entry.inputs)
        hostile = replace(model.program, entry_points=(replace(entry, inputs=inputs),))
        with pytest.raises(ArgumentError, match="nothing says"):
            division(hostile, None)
        exported = model.export_state([0])
        with pytest.raises(ArgumentError):
            checked(hostile, model.state, exported, [0], None, 0)


def test_ranks_hand_over_their_parts_and_refuse_those_of_others(tmp_path: Path):
    for name in ("deep", "shared"):
        folder = tmp_path / name
        path = aotair.build(RECIPES[name], tmp_path / f"{name}.aotair")
        for rank, one in enumerate(said(started(2, "hands_over", folder, path), folder)):
            assert one["got"] == one["want"] != one["fresh"]
            axis = "pp" if name == "deep" else "tp"
            assert one["place"] == f"{axis} {rank} of 2"
            assert one["refused"].startswith("HandoverError: these are states of another rank")
            assert f"{axis} {1 - rank} of 2" in one["refused"]


def test_a_model_of_one_rank_has_no_place(made):
    with aotair.load(made()) as model:
        assert place_of(model.program, 0) == ""
