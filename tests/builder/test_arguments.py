"""Arguments that are no tensors, and tensors within arguments: built as the model takes them, called as it is."""

import dataclasses
import typing
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import pytest
import torch
import yaml
from click.testing import CliRunner
from hypothesis import given as drawn
from hypothesis import strategies as st
from torch import nn
from transformers.utils import ModelOutput

import aotair
from aotair.cli import main
from aotair.errors import ExportError, ModelError, RecipeError
from aotair.model.arguments import MethodArguments
from aotair.recipe.entry import entry_jobs
from aotair.recipe.read import parse_recipe, read_recipe
from aotair_runtime.artifact.open import read_program
from aotair_runtime.call import arguments as runtime
from aotair_runtime.errors import ArgumentError
from aotair_runtime.format.text import summary


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    scale: float = 1.0


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor
    inner: Pair | None = None
    k: int = 1

    def __post_init__(self):
        assert isinstance(self.ids, torch.Tensor)


class Typed(typing.TypedDict):
    a: torch.Tensor
    b: torch.Tensor


@dataclasses.dataclass
class Output(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden: tuple | None = None


@dataclasses.dataclass
class Plain:
    values: torch.Tensor
    rest: torch.Tensor | None = None
    items: torch.Tensor | None = None


class Settings(OrderedDict):
    pass


class _Model(nn.Module):
    """All that come out are sums in which no two inputs count alike."""


class Constants(_Model):
    def forward(self, x, k: int, mode="sum", flag=False, scale=1.0, nothing=0):
        assert nothing is None and type(flag) is bool
        y = x[:, :k] * scale
        return (y.sum(1) if mode == "sum" else y.amax(1)) - (1 if flag else 0)


class Dict(_Model):
    def forward(self, batch, x):
        assert type(batch) is dict
        return batch["ids"] * 2 + batch["mask"] * 3 + x * 5


class List(_Model):
    def forward(self, layers, x):
        assert type(layers) is list
        return layers[0] * 2 + layers[1] * 3 + x * 5


class Tuple(_Model):
    def forward(self, layers: tuple[torch.Tensor, ...], x):
        return sum((*layers, x * 2), start=layers[0])


class Args(_Model):
    def forward(self, x, *xs):
        assert type(xs) is tuple
        return x * 2 + sum(y * n for n, y in enumerate(xs, 3))


class OnlyArgs(_Model):
    def forward(self, *xs):
        return sum(y * n for n, y in enumerate(xs, 3))


class Kwargs(_Model):
    def forward(self, x, y=None, **rest):
        assert y is None and set(rest) == {"class", "k"}
        return x * 2 + rest["class"] * rest["k"]


class ByPosition(_Model):
    def forward(self, x, y, /, k=7, *xs, z):
        return x * 2 + y * 3 + k + xs[0] * 5 + z * 11


class DataClass(_Model):
    def forward(self, batch: Batch):
        assert type(batch) is Batch and type(batch.inner) is Pair
        return batch.ids * 2 + batch.mask * batch.k + batch.inner.a * 5 + batch.inner.b * batch.inner.scale


class NamedTuple(_Model):
    def forward(self, pair: "Pair", x: torch.Tensor):
        assert type(pair) is Pair
        return pair.a * 2 + pair.b * 3 + x * pair.scale


class Nested(_Model):
    def forward(self, batch: typing.Optional[dict[str, list[Pair]]], more: Sequence[Mapping[str, torch.Tensor]]):  # noqa: UP045
        pairs = batch["pairs"]
        assert type(pairs) is list and type(pairs[1]) is Pair and type(more[0]) is dict
        return pairs[0].a * 2 + pairs[0].b * 3 + pairs[1].a * 5 + pairs[1].b * 7 + more[0]["x"] * 11


class Dictionary(_Model):
    def forward(self, typed: Typed, ordered: Settings):
        assert type(typed) is dict and type(ordered) is Settings
        return typed["a"] * 2 + typed["b"] * 3 + ordered["a"] * 5


class Untyped(_Model):
    def forward(self, batch, numbers):
        assert type(batch) is Batch and type(batch.inner) is tuple and type(numbers) is dict
        return batch.ids * 2 + batch.mask * 3 + batch.inner[0] * 5 + numbers[3] * 7


class Written(_Model):
    def forward(self, x, caches: list[torch.Tensor]):
        for number, cache in enumerate(caches, 2):
            cache.add_(x * number)
        return caches[0] - caches[1]


def x() -> torch.Tensor:
    return torch.randn(3, 4)


# For each model: the names of its inputs, constants, types, and a call of the original.
MODELS = {
    "Constants": (["x"], {"k": 2, "mode": "max", "flag": True, "scale": 0.5, "nothing": None}, {},
                  lambda: ((x(),), {"k": 2, "mode": "max", "flag": True, "scale": 0.5, "nothing": None})),
    "Dict": (["batch.ids", "batch.mask", "x"], {}, {}, lambda: (({"mask": x(), "ids": x()}, x()), {})),
    "List": (["layers.0", "layers.1", "x"], {}, {}, lambda: (([x(), x()], x()), {})),
    "Tuple": (["layers.0", "layers.1", "x"], {}, {}, lambda: (((x(), x()), x()), {})),
    "Args": (["x", "xs.0", "xs.1", "xs.2"], {}, {}, lambda: ((x(), x(), x(), x()), {})),
    "OnlyArgs": (["xs.0", "xs.1"], {}, {}, lambda: ((x(), x()), {})),
    "Kwargs": (["x", "class"], {"k": 3}, {}, lambda: ((), {"x": x(), "class": x(), "k": 3})),
    "DataClass": (["batch.ids", "batch.mask", "batch.inner.a", "batch.inner.b"],
                  {"batch.k": 3, "batch.inner.scale": 7.0}, {},
                  lambda: ((Batch(x(), x(), Pair(x(), x(), 7.0), 3),), {})),
    "NamedTuple": (["pair.b", "pair.a", "x"], {}, {}, lambda: ((Pair(x(), x()),), {"x": x()})),
    "Nested": (["batch.pairs.0.a", "batch.pairs.0.b", "batch.pairs.1.a", "batch.pairs.1.b", "more.0.x"], {}, {},
               lambda: (({"pairs": [Pair(x(), x()), Pair(x(), x())]}, [{"x": x()}]), {})),
    "Dictionary": (["typed.a", "typed.b", "ordered.a"], {}, {},
                   lambda: ((), {"typed": {"a": x(), "b": x()}, "ordered": Settings(a=x())})),
    "Untyped": (["batch.ids", "batch.mask", "batch.inner.0", "numbers.3"], {},
                {"batch": f"{__file__}:Batch", "batch.inner": "tuple", "numbers": "dict"},
                lambda: ((), {"batch": Batch(x(), x(), (x(),)), "numbers": {3: x()}})),
    "Written": (["x", "caches.0", "caches.1"], {}, {}, lambda: ((x(), [x(), x()]), {})),
}  # fmt: skip


def recipe(name: str, inputs=(), constants=None, types=None) -> dict:
    item = {"shape": ["n", 4], "dtype": "float32"}
    return {
        "name": "arguments",
        "model": {"factory": f"{__file__}:{name}"},
        "inputs": {n: item | ({"mutated": True} if "caches" in n else {"pad": 0}) for n in inputs},
        "buckets": {"n": [1, 3]},
        "constants": constants or {},
        "types": types or {},
    }


def _leaves(value: object, path: str = ""):
    """The tensors of a call, by dotted name."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif dataclasses.is_dataclass(value) or isinstance(value, dict) or hasattr(value, "_asdict"):
        items = value._asdict() if hasattr(value, "_asdict") else value if isinstance(value, dict) else vars(value)
        for key, item in items.items():
            yield from _leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}.{number}")


def _flat(name: str, args: tuple, kwargs: dict) -> dict[str, torch.Tensor]:
    import inspect

    model = globals()[name]()
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    bound |= bound.pop("rest", {})
    return dict(_leaves(bound))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = {}

    def build(name: str):
        if name not in made:
            inputs, constants, types, _ = MODELS[name]
            target = tmp_path_factory.mktemp(name) / "a.aotair"
            made[name] = aotair.build(recipe(name, inputs, constants, types), target)
        return made[name]

    return build


def _copied(call: tuple[tuple, dict]):
    import copy

    return copy.deepcopy(call)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_called_as_the_original(name, path):
    inputs, _, _, make = MODELS[name]
    original = globals()[name]()
    with aotair.load(path(name), enable_output_clone=True) as model:
        for _ in range(2):
            args, kwargs = call = make()
            mine, mine_by_name = _copied(call), _copied(call)
            flat = _flat(name, *_copied(call))
            want = original(*args, **kwargs)
            torch.testing.assert_close(model(*mine[0], **mine[1]), want)
            after = _flat(name, *mine)
            for key, tensor in _flat(name, *call).items():
                torch.testing.assert_close(after[key], tensor, msg=key)  # what is written into is written
            torch.testing.assert_close(model(**flat), want)
            flat = _flat(name, *mine_by_name)
            torch.testing.assert_close(model({key: flat[key] for key in inputs}), want)
            if not any("caches" in key for key in inputs):
                torch.testing.assert_close(model(*(flat[key] for key in inputs)), want)


@pytest.mark.parametrize("name", ["Dict", "DataClass", "Args", "Constants"])
def test_commands_know_such_arguments(name, path, tmp_path):
    inputs, constants, types, _ = MODELS[name]
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(recipe(name, inputs, constants, types)))
    runner, artifact = CliRunner(), str(path(name))
    for arguments in (["bench", artifact, "--recipe", str(file), "--seconds", "0.01"], ["verify", artifact]):
        result = runner.invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output


def test_arguments_by_position_only(tmp_path):
    given = recipe("ByPosition", ["x", "y", "xs.0", "z"])
    original, (a, b, c, d) = ByPosition(), (x() for _ in range(4))
    with aotair.load(aotair.build(given, tmp_path / "a.aotair")) as model:
        torch.testing.assert_close(model(a, b, c, z=d), original(a, b, 7, c, z=d))


def test_positions_mean_the_methods_order_whatever_the_recipes(tmp_path):
    class Minus(nn.Module):
        def forward(self, a, b, *, k=2, **more):
            return a - k * b + more["c"]

    a, b, c = (torch.randn(3) for _ in range(3))
    loaded = aotair.load(aotair.build(model=Minus(), inputs={"c": c, "b": b, "a": a}, out=tmp_path / "m.aotair"))
    want = Minus()(a, b, c=c)
    assert torch.equal(loaded(a, b, c=c), want) and torch.equal(loaded(a, b, c), want)
    assert torch.equal(loaded([a, b, c]), want)


def test_real_samples_of_dotted_names(tmp_path):
    import safetensors.torch

    names = MODELS["Dict"][0]
    tensors = {f"first.{name}": x() for name in names} | {f"second.{name}": x() for name in names}
    safetensors.torch.save_file(tensors, tmp_path / "s.safetensors")
    given = recipe("Dict", names) | {"verify": {"samples": str(tmp_path / "s.safetensors")}}
    aotair.build(given, tmp_path / "a.aotair")


class Several(_Model):
    def prefill(self, batch, k):
        return batch["x"] * k

    def decode(self, batch, k):
        return batch["x"] + k


def test_each_entry_point_has_its_constants(tmp_path):
    item = {"shape": [3, 4], "dtype": "float32"}
    given = {
        "name": "arguments",
        "model": {"factory": f"{__file__}:Several"},
        "entry_points": {
            "prefill": {"method": "prefill", "inputs": {"batch.x": item}, "constants": {"k": 2}},
            "decode": {"method": "decode", "inputs": {"batch.x": item}, "constants": {"k": 0.5}},
        },
    }
    with aotair.load(aotair.build(given, tmp_path / "a.aotair"), enable_output_clone=True) as model:
        one, original = x(), Several()
        torch.testing.assert_close(model.prefill({"x": one}, k=2), original.prefill({"x": one}, 2))
        torch.testing.assert_close(model.decode(batch={"x": one}), original.decode({"x": one}, 0.5))
        with pytest.raises(ArgumentError, match=r"2 for 'k', which the model was built with as 0\.5"):
            model.decode({"x": one}, k=2)


def test_constants_in_lists_and_dicts_are_names_of_their_own(path):
    given = parse_recipe(recipe("Dict", ["x"], {"size": [2, 3.5], "how": {"mode": "a", "deep": [True]}, "k": None}))
    assert entry_jobs(given)[0].constant_values() == {
        "size.0": 2, "size.1": 3.5, "how.mode": "a", "how.deep.0": True, "k": None,
    }  # fmt: skip
    assert "constant mode: 'max'" in summary(read_program(path("Constants")))


@pytest.mark.parametrize(
    ("name", "call", "says"),
    [
        ("Dict", lambda t: (({"ids": t},), {"x": t}), "no 'batch.mask'"),
        ("Dict", lambda t: (({"ids": t, "mask": t, "other": t}, t), {}), "the unknown argument 'batch.other'"),
        ("Dict", lambda t: (([t, t], t), {}), "a list for 'batch', which holds ids, mask"),
        ("Dict", lambda t: ((3, t), {}), "a int for 'batch'"),
        ("Dict", lambda t: (({"ids": t, "mask": t}, t), {"batch.ids": t}), "'batch.ids' twice"),
        ("Dict", lambda t: (({"ids": t, "mask": 3}, t), {}), "a int for 'batch.mask'"),
        ("List", lambda t: (([t], t), {}), "1 items for 'layers', which holds 2"),
        ("List", lambda t: (({"2": t}, t), {}), "the unknown argument 'layers.2'"),
        ("Args", lambda t: ((t, t, t), {}), "no 'xs.2'"),
        ("Args", lambda t: ((t,) * 5, {}), "5 positional"),
        ("Constants", lambda t: ((t,), {"k": 3}), "3 for 'k', which the model was built with as 2"),
        ("Constants", lambda t: ((t,), {"flag": 1}), "1 for 'flag', which the model was built with as True"),
        ("Constants", lambda t: ((t,), {"k": t}), "'k', which the model was built with as 2"),
        ("Constants", lambda t: ((t,), {"unknown": 1}), "the unknown argument 'unknown'"),
        ("DataClass", lambda t: ((Batch(t, t, Pair(t, t, 7.0), 4),), {}), "4 for 'batch.k'"),
        ("DataClass", lambda t: ((Batch(t, t, None, 3),), {}), "a NoneType for 'batch.inner'"),
        ("NamedTuple", lambda t: ((Pair(t, t, 2.0), t), {}), "the unknown argument 'pair.scale'"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_is_refused(name, call, says, path):
    with aotair.load(path(name)) as model:
        args, kwargs = call(x())
        with pytest.raises(ArgumentError) as caught:
            model(*args, **kwargs)
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"constants": {"x": 3}}, "inputs.x: there are an input and a constant"),
        ({"constants": {"batch": 3}}, "inputs.batch: there are batch itself, and batch.ids"),
        ({"constants": {"k": []}}, "constants.k: wrong value"),
        ({"constants": {"k": [{}]}}, "an empty dict"),
        ({"constants": {"batch.0": 1}}, "inputs.batch: it is no list and no dict"),
        ({"constants": {"k.1": 1}}, "inputs.k: it is no list and no dict"),
        ({"constants": {"k..a": 1}}, "constants.k..a"),
        ({"types": {"x": "tuple"}}, "types.x: nothing lies in it"),
        ({"types": {"batch": "set"}}, "types.batch"),
    ],
)  # fmt: skip
def test_a_recipe_that_means_nothing_is_refused(change, says):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(recipe("Dict", MODELS["Dict"][0]) | change)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "inputs", "constants", "types", "says"),
    [
        ("Dict", ["x"], {}, {}, "inputs: the model needs 'batch'"),
        ("Dict", ["batch.ids", "batch.mask", "x"], {"k": 3}, {}, "constants.k: the model does not take"),
        ("Args", ["x", "xs"], {}, {}, "write xs.0, xs.1"),
        ("Kwargs", ["x", "rest.class"], {}, {}, "write class: it is an argument of its own"),
        ("DataClass", ["batch.ids"], {}, {}, "inputs.batch: no Batch can be made of ids: TypeError"),
        ("Dict", ["batch.ids", "batch.mask", "x"], {}, {"batch": "no.such:Thing"}, "types.batch: cannot import"),
        ("Dict", ["batch.ids", "batch.mask", "x"], {}, {"batch": "math:sqrt"}, "types.batch: 'math:sqrt' is no class"),
        ("Dict", ["batch.ids", "x"], {}, {}, "KeyError: 'mask'"),
    ],
)  # fmt: skip
def test_a_model_that_takes_other_arguments_is_said(name, inputs, constants, types, says, tmp_path):
    with pytest.raises((ModelError, ExportError)) as caught:
        aotair.build(recipe(name, inputs, constants, types), tmp_path / "a.aotair")
    assert says in str(caught.value)


def test_a_field_of_a_dotted_input_is_set_on_the_command_line(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(recipe("Dict", MODELS["Dict"][0])))
    found = read_recipe(file, ["inputs.batch.ids.dtype=float64", "inputs.x.dtype=float16", "constants.k=3"])
    assert [item.dtype for item in found.inputs.values()] == ["float64", "float32", "float16"]
    assert found.constants == {"k": 3}


_KEYS = st.sampled_from(["a", "b", "ids", "input", "class", "k-1"])
_STRUCTURES = st.recursive(
    st.just(None),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(_KEYS, inner, min_size=1, max_size=3),
    max_leaves=8,
)


def _filled(structure: object):
    if structure is None:
        return torch.zeros(())
    if isinstance(structure, dict):
        return {key: _filled(item) for key, item in structure.items()}
    return [_filled(item) for item in structure]


@drawn(st.dictionaries(st.sampled_from(["x", "batch", "layers", "rest"]), _STRUCTURES, min_size=1, max_size=3))
def test_any_structure_is_taken_apart_and_put_together_again(structures):
    call = {name: _filled(structure) for name, structure in structures.items()}
    tensors = dict(_leaves(call))
    item = {"shape": [1], "dtype": "float32"}
    (one,) = entry_jobs(parse_recipe(recipe("Dict") | {"inputs": dict.fromkeys(tensors, item), "buckets": {}}))
    made = MethodArguments(lambda **any_of_them: None, one)
    assert made(tensors) == ((), call)
    taken = runtime.Arguments(list(tensors), {})
    for args, kwargs in (((), call), ((), tensors), (tuple(call.values()), {}), (tuple(tensors.values()), {})):
        got = taken.ordered(args, kwargs)
        assert list(map(id, got)) == list(map(id, tensors.values()))


class Scored(_Model):
    def forward(self, x, mask, k: int, scale: "float", mode: str, flag: bool):
        assert (type(k), type(scale), type(mode), type(flag)) == (int, float, str, bool)
        return x.new_ones(1) * scale + mask.sum()


def test_init_knows_constants_and_masks():
    text = CliRunner().invoke(main, ["init", f"{__file__}:Scored"], catch_exceptions=False).output
    found = yaml.safe_load(text)
    assert found["constants"] == {"k": 1, "scale": 1.0, "mode": "", "flag": False}
    assert found["inputs"]["mask"] == {"shape": ["batch", "seq"], "dtype": "int64", "pad": 0, "mask": "right"}
    assert list(parse_recipe(found).inputs) == ["x", "mask"] and "the model took these inputs" in text


# ---- what comes back ---------------------------------------------------------------------------------------------


class Results(_Model):
    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        y = x * 2
        return {
            "topk": lambda: x.topk(2, 1),
            "max": lambda: x.max(1),
            "sort": lambda: x.sort(1),
            "named": lambda: Pair(y, x + 1, 3.0),
            "output": lambda: Output(logits=y, hidden=(x + 1, x + 2)),
            "data class": lambda: Plain(y, items=x + 1),
            "nested": lambda: [Pair({"a": y}, Plain(x + 1)), x.max(0)],
        }[self.kind]()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def call(kind: str):
        given = recipe("Results", ["x"])
        given["model"]["kwargs"] = {"kind": kind}
        given["inputs"]["x"].pop("pad")
        model = aotair.load(aotair.build(given, tmp_path_factory.mktemp("results") / "a.aotair"))
        one = x()
        return model(one), Results(kind)(one)

    return call


@pytest.mark.parametrize("kind", ["topk", "max", "sort", "named"])
def test_named_tuples_are_tuples_with_names(kind, results):
    got, want = results(kind)
    assert isinstance(got, tuple) and len(got) == len(want) and type(got).__name__ == type(want).__name__
    names = type(want).__match_args__
    for place, (name, one) in enumerate(zip(names, want)):
        torch.testing.assert_close(getattr(got, name), one)
        assert got[place] is getattr(got, name)
    first, *_ = got
    assert first is got[0] and got._fields == names and names[0] in repr(got)
    assert got._replace(**{names[0]: 5})[0] == 5 and got._asdict()[names[1]] is got[1]
    assert type(got)(*got) == tuple(got) and type(got)._make(got) == tuple(got)
    with pytest.raises((TypeError, KeyError)):
        got[names[0]]


def test_model_outputs_are_read_in_all_ways(results):
    got, want = results("output")
    assert list(got) == list(want) == ["logits", "hidden"] and len(got) == len(want) == 2
    assert got.loss is None and want.loss is None and "loss" not in got
    torch.testing.assert_close(got.logits, want.logits)
    assert got["logits"] is got.logits is got[0] and got[-1] is got["hidden"] and got[:1] == (got.logits,)
    assert got.to_tuple() == (got.logits, got.hidden) == tuple(got.values())
    torch.testing.assert_close(got.to_tuple(), want.to_tuple())
    with pytest.raises(AttributeError, match="no output 'nothing'; there are logits, hidden"):
        got.nothing  # noqa: B018
    with pytest.raises(KeyError):
        got["nothing"]
    with pytest.raises(IndexError):
        got[2]


def test_data_classes_have_their_attributes_whatever_they_are_called(results):
    got, want = results("data class")
    assert got.rest is None
    for name in ("values", "items"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name))
        assert got[name] is getattr(got, name)
    assert got.to_tuple() == (got.values, got.items)


def test_records_within_others(results):
    got, want = results("nested")
    assert type(got) is list
    torch.testing.assert_close(got[0].a["a"], want[0].a["a"])
    torch.testing.assert_close(got[0].b.values, want[0].b.values)
    torch.testing.assert_close(got[1].indices, want[1].indices)
