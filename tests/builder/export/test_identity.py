"""Which tensors of several entry points are one, whatever export calls them; and the proof of what was written."""

import random

import pytest
import torch
from marks import long
from torch import nn

import aotair
from aotair.errors import UnsupportedError
from aotair.export.exported import Exported, NamedTensor
from aotair.export.identity import unified
from aotair.model.tied_names import Names
from aotair_runtime.artifact.open import read_program

X = {"x": {"shape": [3, 3], "dtype": "float32"}}


def entries(model: str, *methods: str) -> dict:
    points = {method: {"method": method, "inputs": X} for method in methods}
    return {"name": model.lower(), "model": {"factory": f"{__file__}:{model}"}, "entry_points": points}


class Literals(nn.Module):
    """Literals of one name, different values, shapes and dtypes, some of them equal to what the model registers."""

    def __init__(self, persistent: bool = True):
        super().__init__()
        self.register_buffer("y", torch.tensor([4.0, 5.0, 6.0]), persistent=persistent)
        self.plain = torch.tensor([7.0, 7.0, 7.0])

    def a(self, x):
        return x * torch.tensor([1.0, 2.0, 3.0]) + self.y

    def b(self, x):
        return x * torch.tensor([4.0, 5.0, 6.0]) * torch.tensor([7.0, 7.0, 7.0])

    def c(self, x):
        return x[:, :2] * torch.tensor([9, 8]) + self.plain[:2]

    def d(self, x):
        return x + torch.tensor(2.5) - torch.tensor([], dtype=torch.float64).sum()


class Unsaved(Literals):
    """The same, with a buffer that is not persistent: a constant of the code, as the literals are."""

    def __init__(self):
        super().__init__(persistent=False)


class Impostors(nn.Module):
    """Registered under the names that torch.export gives to literals."""

    def __init__(self):
        super().__init__()
        self.lifted_tensor_0 = nn.Parameter(torch.tensor([7.0, 8.0, 9.0]))
        self.c_lifted_tensor_0 = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("lifted_tensor_1", torch.full((3,), 3.0), persistent=False)

    def a(self, x):
        return x * torch.tensor([1.0, 2.0, 3.0]) + self.lifted_tensor_0 - self.c_lifted_tensor_0

    def b(self, x):
        return x * torch.tensor([5.0, 5.0, 6.0]) + torch.tensor([1.0, 9.0, 1.0])

    def c(self, x):
        return x * torch.tensor([5.0, 2.0, 6.0]) + self.lifted_tensor_0 * self.lifted_tensor_1

    d = b


class Tied(nn.Module):
    """One memory under many names, kinds, shapes and dtypes."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.arange(9.0).view(3, 3))
        self.q = self.p
        self.register_buffer("same", self.p.data)
        self.register_buffer("turned", self.p.data.t())
        self.register_buffer("bits", self.p.data.view(torch.int32))
        self.register_buffer("unsaved", self.p.data, persistent=False)
        self.plain, self.row = self.p.data, self.p.data[1]

    def a(self, x):
        return x @ self.p + self.same + self.turned

    def b(self, x):
        return x @ self.q + self.bits + self.unsaved + self.plain + self.row

    def c(self, x):
        return x @ self.plain + self.turned - self.same

    d = a


class Overlapping(nn.Module):
    """Memory that is written, and read as another tensor, in the same entry point or another."""

    def __init__(self, kind: str):
        super().__init__()
        self.pages = nn.Buffer(torch.zeros(3, 3))
        self.copy = nn.Parameter(self.pages.clone())
        self.tied = self.copy
        if kind == "attribute":
            self.page = self.pages[1]
        elif kind == "parameter":
            self.page = nn.Parameter(self.pages[1])
        elif kind != "same":
            self.page = nn.Buffer({"buffer": self.pages[1], "turned": self.pages.t()}[kind])
        else:
            self.page = self.pages

    def a(self, x):
        self.pages.copy_(x)
        return x * 2 + self.copy

    def b(self, x):
        return x + self.page + self.tied

    def both(self, x):
        return self.a(x) + self.page


class Apart(nn.Module):
    """Registered tensors that lie in one storage, and share no byte of it."""

    def __init__(self):
        super().__init__()
        both = torch.arange(18.0).view(2, 3, 3)
        self.left, self.right = nn.Buffer(both[0]), nn.Buffer(both[1])
        self.wide = nn.Buffer(torch.ones(1).expand(3, 3))
        self.scale = nn.Parameter(torch.full((1,), 3.0).expand(3))

    def a(self, x):
        self.left.add_(1)
        return x * self.left + self.right * self.wide * self.scale

    b = c = d = a


@pytest.mark.parametrize("model", [Literals, Unsaved, Impostors, Tied, Apart])
def test_each_entry_point_computes_with_its_own_constants(model, tmp_path):
    path = aotair.build(entries(model.__name__, *"abcd"), tmp_path / "a.aotair")
    original = model()
    with aotair.load(path, enable_output_clone=True) as loaded:
        for method in "abcdabcd":
            x = torch.randn(3, 3)
            torch.testing.assert_close(getattr(loaded, method)(x), getattr(original, method)(x))


def test_what_is_registered_keeps_its_name(tmp_path):
    program = read_program(aotair.build(entries("Impostors", *"abc"), tmp_path / "a.aotair"))
    kinds = {constant.name: constant.kind for constant in program.constants}
    assert kinds["lifted_tensor_0"] == kinds["c_lifted_tensor_0"] == "weight"
    assert kinds["lifted_tensor_1"] == "fixed" and "b.lifted_tensor_2" in kinds


def test_the_same_bytes_whatever_comes_first(tmp_path):
    one, two = (aotair.build(entries("Literals", *"abcd"), tmp_path / name) for name in ("a.aotair", "b.aotair"))
    for file in ("program.msgpack", "weights.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()


@pytest.mark.parametrize("kind", ["attribute", "parameter", "buffer", "turned", "same"])
@pytest.mark.parametrize("methods", [("a", "b"), ("b", "a"), ("both",)])
def test_memory_that_is_written_and_shared_is_refused(kind, methods, tmp_path):
    given = entries("Overlapping", *methods)
    given["model"]["kwargs"] = {"kind": kind}
    with pytest.raises(UnsupportedError, match=r"writes into (pages|page), whose memory (pages|page) shares"):
        aotair.build(given, tmp_path / "a.aotair")


class Mixed(nn.Module):
    """Registered tensors, attributes and literals, tied, equal or views of one another at random, of all kinds."""

    def __init__(self, seed: int):
        super().__init__()
        chooser = random.Random(seed)
        made = [torch.ones(3, 3)]
        for number in range(chooser.randint(1, 6)):
            source, name = chooser.choice(made), f"t{number}"
            how = (
                source,
                source.clone(),
                source.t(),
                source.clone().double(),
                source[:1].expand(3, 3),
                source.clone().view(torch.int32) if source.dtype == torch.float32 else source,
                source.detach(),
            )
            made.append(chooser.choice(how))
            kind = chooser.choice(("parameter", "buffer", "unsaved", "plain"))
            if kind == "plain" or (kind == "parameter" and not made[-1].is_floating_point()):
                setattr(self, name, made[-1])
            elif kind == "parameter":
                setattr(self, name, nn.Parameter(made[-1], requires_grad=False))
            else:
                self.register_buffer(name, made[-1], persistent=kind == "buffer")
        self.reads = {method: chooser.sample(range(number + 1), chooser.randint(0, number + 1)) for method in "ab"}
        self.literals = {method: [chooser.randint(0, 2) for _ in range(chooser.randint(0, 3))] for method in "ab"}

    def a(self, x, method="a"):
        for number in self.reads[method]:
            x = x * 2 + getattr(self, f"t{number}")
        for value in self.literals[method]:
            x = x * 2 + torch.tensor([value] * 3)
        return x - 1

    def b(self, x):
        return self.a(x, "b")


@pytest.mark.parametrize("share", [True, long(False)])
def test_random_models_are_written_as_they_are_read(share, tmp_path):
    for seed in range(6):
        given = entries("Mixed", "a", "b")
        given["model"] |= {"kwargs": {"seed": seed}, "share_equal_weights": share}
        original, x = Mixed(seed), torch.randn(3, 3)
        with aotair.load(aotair.build(given, tmp_path / "a.aotair"), enable_output_clone=True) as loaded:
            torch.testing.assert_close(loaded.a(x), original.a(x), msg=str(seed))
            torch.testing.assert_close(loaded.b(x), original.b(x), msg=str(seed))


# ---- graphs alone ----------------------------------------------------------------------------------------------------


def graph_of(constants: dict | None = None, states: dict | None = None, registered=()) -> Exported:
    """What is known of a graph whose placeholders go by p_NAME."""
    names = Names({}, frozenset(registered))
    kinds = [
        {f"p_{name}": NamedTensor(name, tensor) for name, tensor in (tensors or {}).items()}
        for tensors in (constants, states)
    ]
    return Exported(torch.fx.GraphModule({}, torch.fx.Graph()), *kinds, {}, (), ("tuple",), names)


def names_of(one: Exported) -> tuple[dict[str, str], dict[str, str]]:
    return {p: c.name for p, c in one.constants.items()}, {p: c.name for p, c in one.states.items()}


A, B = torch.ones(3), torch.zeros(3)


def test_one_graph_keeps_its_names():
    (found,) = unified([graph_of({"w": A, "v": B}, {"s": torch.zeros(1)})], ["a"])
    assert names_of(found) == ({"p_w": "w", "p_v": "v"}, {"p_s": "s"})


def test_two_tensors_of_one_name_get_two():
    found = unified([graph_of({"c": A}), graph_of({"c": B}), graph_of({"c": A})], ["a", "b", "c"])
    assert [names_of(one)[0] for one in found] == [{"p_c": "c"}, {"p_c": "b.c"}, {"p_c": "c"}]


def test_a_name_that_is_taken_is_numbered():
    graphs = [graph_of({"c": A, "b.c": B}), graph_of({"c": torch.full((3,), 2.0)})]
    first, second = unified(graphs, ["a", "b"])
    assert names_of(second)[0] == {"p_c": "b.c.1"} and set(names_of(first)[0].values()) == {"c", "b.c"}


def test_what_is_registered_keeps_its_name_whoever_comes_first():
    first, second = unified([graph_of({"w": A}), graph_of({"w": B}, registered=["w"])], ["a", "b"])
    assert names_of(first)[0] == {"p_w": "a.w"} and names_of(second)[0] == {"p_w": "w"}


@pytest.mark.parametrize(
    "other",
    [A.view(1, 3), A.view(3, 1), A.view(torch.int32), A[:2], A[1:], A.clone()],
)
def test_another_view_of_the_memory_is_another_tensor(other):
    _, second = unified([graph_of({"c": A}), graph_of({"c": other})], ["a", "b"])
    assert names_of(second)[0] == {"p_c": "b.c"}


@pytest.mark.parametrize("other", [A, A.detach(), A.view(3), A[:]])
def test_the_same_view_is_the_same_tensor(other):
    _, second = unified([graph_of({"c": A}), graph_of({"c": other})], ["a", "b"])
    assert names_of(second)[0] == {"p_c": "c"}


def test_marked_views_are_told_apart():
    values = torch.ones(2, dtype=torch.complex64)
    _, second = unified([graph_of({"c": values}), graph_of({"c": values.conj()})], ["a", "b"])
    assert names_of(second)[0] == {"p_c": "b.c"}


def test_tensors_of_nothing_are_told_by_name_shape_and_dtype():
    empty = torch.empty(0, 3)
    found = unified(
        [graph_of({"c": empty}), graph_of({"c": torch.empty(0, 3)}), graph_of({"c": torch.empty(0, 4)})], list("abc")
    )
    assert [names_of(one)[0]["p_c"] for one in found] == ["c", "c", "c.c"]


def test_what_one_graph_writes_is_a_state_in_all():
    state = torch.zeros(3)
    reads, writes = unified([graph_of({"s": state, "w": A}), graph_of({}, {"s": state})], ["a", "b"])
    assert names_of(reads) == ({"p_w": "w"}, {"p_s": "s"}) and names_of(writes) == ({}, {"p_s": "s"})


def test_names_of_a_state_are_those_of_who_writes_it():
    state = torch.zeros(3)
    found = unified([graph_of({"reads": state}), graph_of({}, {"writes": state})], ["a", "b"])
    assert [names_of(one)[1] for one in found] == [{"p_reads": "writes"}, {"p_writes": "writes"}]


@pytest.mark.parametrize("other", [lambda s: s[1:], lambda s: s.view(1, 4), lambda s: s.view(torch.int32)])
@pytest.mark.parametrize("both", [True, False])
def test_a_state_that_another_tensor_overlaps_is_refused(other, both):
    state = torch.zeros(4)
    graphs = [graph_of({"part": other(state)}), graph_of({}, {"s": state})]
    if both:
        graphs = [graph_of({"part": other(state)}, {"s": state})]
    with pytest.raises(UnsupportedError, match="s, whose memory part"):
        unified(graphs, ["a", "b"][: len(graphs)])


def test_neighbours_in_one_storage_do_not_overlap():
    both = torch.zeros(8)
    unified([graph_of({"c": both[:4]}, {"s": both[4:]})], ["a"])
