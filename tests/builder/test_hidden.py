"""What a model changes though nobody registered it: values on which outputs depend, and those that do no harm."""

import collections
import itertools
import logging
from dataclasses import dataclass, field

import numpy
import pytest
import torch
from torch import nn

import aotair
from aotair.errors import ModelError, UnsupportedError
from aotair.model.held import Snapshot
from aotair_runtime.errors import AotairError

X = {"x": {"shape": [2, 3], "dtype": "float32"}}


@dataclass(slots=True)
class Slotted:
    steps: int = 0


@dataclass
class Holder:
    steps: int = 0
    seen: list = field(default_factory=list)


class Base(nn.Module):
    steps = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.n, self.scale, self.turn, self.mode, self.maybe = 0, 1.0, False, "a", None
        self.log, self.table, self.names = [], {}, set()
        self.queue, self.counter = collections.deque([1, 2, 3]), itertools.count()
        self.deep, self.slotted, self.array = {"a": [Holder()]}, Slotted(), numpy.zeros(2)
        self.aside = [nn.ReLU()]


def _number(self, x):
    self.n += 1
    return x + self.n


def _scale(self, x):
    self.scale *= 0.5
    return x * self.scale


def _turns(self, x):
    self.turn = not self.turn
    return x if self.turn else -x


def _text(self, x):
    self.mode = "b" if self.mode == "a" else "a"
    return x * len({"a": [1], "b": [1, 2]}[self.mode])


def _grows(self, x):
    self.log.append(1.0)
    return x + len(self.log)


def _grows_a_dict(self, x):
    self.table[len(self.table)] = "x"
    return x + len(self.table)


def _grows_a_set(self, x):
    self.names.add(len(self.names))
    return x + len(self.names)


def _rotates(self, x):
    self.queue.rotate(1)
    return x + self.queue[0]


def _counts(self, x):
    return x + next(self.counter)


def _deep(self, x):
    self.deep["a"][0].steps += 1
    return x + self.deep["a"][0].steps


def _slots(self, x):
    self.slotted.steps += 1
    return x + self.slotted.steps


def _array(self, x):
    self.array[1] += 1
    return x + float(self.array[1])


def _of_the_class(self, x):
    type(self).steps += 1
    return x + type(self).steps


def _of_a_layer(self, x):
    self.linear.uses = getattr(self.linear, "uses", 0) + 1
    return self.linear(x) + self.linear.uses


def _unregistered(self, x):
    self.aside[0].uses = getattr(self.aside[0], "uses", 0) + 1
    return x + self.aside[0].uses


def _later(self, x):
    self.n += 1
    return x if self.n < 100 else -x


HARMFUL = {
    "n": _number, "scale": _scale, "turn": _turns, "mode": _text, "log": _grows, "table": _grows_a_dict,
    "names": _grows_a_set, "queue": _rotates, "counter": _counts, "deep['a'][0].steps": _deep,
    "slotted.steps": _slots, "array": _array, "steps": _of_the_class, "linear.uses": _of_a_layer,
    "aside[0].uses": _unregistered, "n ": _later,
}  # fmt: skip


def _statistics(self, x):
    self.n += 1
    self.scale += x.shape[0]
    self.turn = not self.turn
    self.log.append(x.shape)
    self.table[self.n] = "called"
    self.deep["a"][0].seen.append(self.n)
    return self.linear(x)


def _made_late(self, x):
    if self.maybe is None:
        self.maybe = 3
        self.log.append("made")
    return x * self.maybe


def _put_back(self, x):
    self.n += 1
    self.log.append(self.n)
    y = x + len(self.log)
    self.n -= 1
    self.log.pop()
    return y


def _sometimes_says(self, x):
    self.n += 1
    if self.n % 10 == 0:
        self.mode = f"{self.n} calls"
    return x * 2


HARMLESS = {"statistics": _statistics, "late": _made_late, "back": _put_back, "says": _sometimes_says}


def make(name: str) -> nn.Module:
    kind = type("Model", (Base,), {"forward": {**HARMFUL, **HARMLESS}[name]})
    return kind()


def recipe(name: str) -> dict:
    return {"name": "hidden", "model": {"factory": f"{__file__}:make", "kwargs": {"name": name}}, "inputs": X}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_value_that_outputs_depend_on_is_refused_by_name(name, tmp_path):
    with pytest.raises(UnsupportedError, match="at each call, and its outputs depend on that") as caught:
        aotair.build(recipe(name), tmp_path / "a.aotair")
    assert f"{name.strip()} at each call" in str(caught.value).replace("Model.", "").replace("Base.", "")


@pytest.mark.parametrize("name", HARMLESS)
def test_a_value_that_does_no_harm_is_left_alone(name, tmp_path):
    torch.manual_seed(0)  # as the build has it
    original, x = make(name), torch.randn(2, 3)
    with aotair.load(aotair.build(recipe(name), tmp_path / "a.aotair"), enable_output_clone=True) as model:
        for _ in range(3):
            torch.testing.assert_close(model(x), original(x))


class Keeps(torch.nn.Module):
    """What a call leaves for the next one to overwrite, as a layer that keeps its attention weights does."""

    def __init__(self, reads: bool):
        super().__init__()
        self.seen = Kept()
        self.reads = reads

    def forward(self, x):
        before, self.seen.last = self.seen.last, x * 2
        return self.seen.last + (before if self.reads and before is not None else 1)


class Kept:
    last = None


@pytest.mark.parametrize("reads", [False, True])
def test_tensors_that_each_call_makes_anew_are_state_only_where_the_next_reads_them(reads, tmp_path):
    recipe = {
        "name": "keeps",
        "model": {"factory": f"{__file__}:Keeps", "kwargs": {"reads": reads}},
        "inputs": {"x": {"shape": [3], "dtype": "float32"}},
    }
    if reads:
        with pytest.raises(UnsupportedError, match=r"the model changes seen\.last, which outlives the call"):
            aotair.build(recipe, tmp_path / "a.aotair")
    else:
        model = aotair.load(aotair.build(recipe, tmp_path / "a.aotair"))
        assert model(torch.ones(3)).tolist() == [3, 3, 3]


class Remembers(nn.Module):
    """What the first call keeps, in as many ways as there are places for it."""

    def __init__(self, way):
        super().__init__()
        self.way, self.kept, self.ready, self.most, self.table = way, None, False, 0, {}
        self.register_buffer("late", None)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        return getattr(self, self.way)(x)

    def attribute(self, x):
        self.kept = x.mean() if self.kept is None else self.kept
        return x + self.kept

    def buffer(self, x):
        self.late = x.mean() if self.late is None else self.late
        return x + self.late

    def item(self, x):
        return x + self.table.setdefault("mean", x.mean())

    def flag(self, x):
        if not self.ready:
            self.seen.copy_(x.sum(0))
            self.ready = True
        return x - self.seen

    def size(self, x):
        self.most = max(self.most, x.shape[0])
        return x * self.most

    def grows(self, x):
        if self.kept is None or len(self.kept) < len(x):
            self.kept = torch.arange(float(len(x)))
            self.late = self.kept * 2
        return x * self.kept[: len(x), None] + self.late[: len(x), None]

    def makes(self, x):
        self.table.setdefault("ones", torch.ones(3))
        return x + self.table["ones"]


def _remembers(way: str) -> dict:
    return {
        "name": "remembers",
        "model": {"factory": f"{__file__}:Remembers", "kwargs": {"way": way}},
        "inputs": {"x": {"shape": ["n", 3], "dtype": "float32"}},
        "buckets": {"n": [2, 4]},
    }


WAYS = {
    "attribute": "kept", "buffer": "late", "item": "table.mean", "flag": "ready", "size": "most",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_what_the_first_call_leaves_for_later_ones_is_refused_by_name(way, tmp_path):
    with pytest.raises(UnsupportedError, match=f"keeps {WAYS[way]} of one call, and later calls answer otherwise"):
        aotair.build(_remembers(way), tmp_path / "a.aotair")


@pytest.mark.parametrize("way", ["grows", "makes"])
def test_tables_that_calls_make_and_enlarge_are_constants(way, tmp_path):
    model, original = aotair.load(aotair.build(_remembers(way), tmp_path / "a.aotair")), Remembers(way)
    for rows in (2, 4, 2):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(model(x), original(x))


_LOGGERS = []


class Logs(nn.Module):
    """Keeps a logger, and makes another one at its first call: the process's, and none of the model's values."""

    def __init__(self):
        super().__init__()
        self.log, self.bytes = logging.getLogger("aotair.tests.kept"), bytearray(1)
        self.table = {}

    def forward(self, x):
        _LOGGERS.append(logging.getLogger("aotair.tests.made"))
        self.log.debug("called")
        self.bytes[0] = 1
        return x + self.table.setdefault("two", torch.full((3,), 2.0))


def test_what_is_the_processs_is_not_put_back(tmp_path):
    inputs = {"x": {"shape": ["n", 3], "dtype": "float32"}}
    model = aotair.load(aotair.build(model=Logs(), inputs=inputs, buckets={"n": [2, 4]}, out=tmp_path / "a.aotair"))
    assert torch.equal(model(torch.ones(2, 3)), torch.full((2, 3), 3.0))
    assert len(_LOGGERS) > 4 and len(set(_LOGGERS)) == 1, "the logger that the first call made was taken away"


def test_a_snapshot_puts_back_what_has_changed():
    model = Logs()
    before = Snapshot(model)
    model.bytes[0], model.more, model.table["x"] = 3, [1], 2
    assert before.changed() == ["bytes", "more", "table.x"]
    before.restore()
    assert model.bytes == bytearray(1) and not hasattr(model, "more") and model.table == {}
    assert before.changed() == []


class HandsOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = None

    def first(self, x):
        self.keys = x * 2
        return x + 1

    def second(self, x):
        return x + self.keys


def test_what_one_entry_point_leaves_for_another_is_refused_by_name(tmp_path):
    inputs = {"x": {"shape": [3], "dtype": "float32"}}
    points = {name: {"method": name, "inputs": inputs} for name in ("first", "second")}
    with pytest.raises(UnsupportedError, match=r"second: the model keeps keys of one call"):
        aotair.build(model=HandsOn(), entry_points=points, out=tmp_path / "a.aotair")


_CALLS = itertools.count()


class Elsewhere(nn.Module):
    def forward(self, x):
        return x + next(_CALLS)


def test_what_depends_on_things_that_nobody_sees_is_refused(tmp_path):
    inputs = {"x": {"shape": [3], "dtype": "float32"}}
    with pytest.raises(ModelError, match="answers otherwise when it is called again with the same inputs"):
        aotair.build(model=Elsewhere(), inputs=inputs, out=tmp_path / "a.aotair")


class Late(torch.nn.Module):
    """A buffer that the first call replaces by one of the size that it needs, and a state that each call replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.zeros(1, 1), persistent=False)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        if self.places.shape[1] != x.shape[1]:
            self.places = torch.arange(float(x.shape[1]))[None]
        self.seen = self.seen + x.sum(0)
        return x + self.places, self.seen * 1


def test_a_buffer_that_a_call_replaces_is_put_back_itself(tmp_path):
    recipe = {
        "name": "late",
        "model": {"factory": f"{__file__}:Late"},
        "inputs": {"x": {"shape": ["n", 4], "dtype": "float32"}},
        "buckets": {"n": [1, 3]},
    }
    model, original = aotair.load(aotair.build(recipe, tmp_path / "a.aotair")), Late()
    for rows in (1, 3, 1, 3):
        x = torch.randn(rows, 4)
        for got, want in zip(model(x), original(x)):
            torch.testing.assert_close(got, want)


def test_a_buffer_that_has_another_shape_in_each_bucket_is_refused_with_the_line(tmp_path):
    recipe = {
        "name": "late",
        "model": {"factory": f"{__file__}:Late"},
        "inputs": {"x": {"shape": [2, "n"], "dtype": "float32"}},
        "buckets": {"n": [4, 6]},
    }
    with pytest.raises(AotairError, match=r"\(at test_hidden\.py:"):
        aotair.build(recipe, tmp_path / "a.aotair")


class Resized(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.resize_(8)
        return x + 1


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("part", torch.arange(4.0)[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.part.add_(1)


def test_a_buffer_that_a_call_resizes_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="resizes its buffer kept"):
        aotair.build(model=Resized(), name="resized", inputs=X, out=tmp_path / "a.aotair")


def test_a_buffer_that_is_a_part_of_another_tensor(tmp_path):
    path = aotair.build(model=Part(), name="part", inputs=X, out=tmp_path / "a.aotair")
    with aotair.load(path) as served:
        x = torch.ones(2, 3)
        assert served(x)[0].tolist() == [2, 3, 4] and served(x)[0].tolist() == [3, 4, 5]
