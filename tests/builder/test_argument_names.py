"""Arguments of any name: Python's builtins, names of nodes, of tensors of the model, in other case, among keywords."""

import keyword

import pytest
import torch
from torch import nn

import aotair
from aotair.errors import UnsupportedError

NAMES = [
    ("input",), ("hash",), ("input", "input_1"), ("x_1", "x"), ("X", "x"), ("n", "N"), ("len", "range", "print"),
    ("float", "int", "torch"), ("device", "inf", "nan"), ("math", "operator", "fx_pytree"), ("id", "type", "ids"),
    ("class_", "lambda_", "self_"), ("add", "linear"), ("mul", "add_1", "mul_1"), ("output",), ("args",), ("kwargs",),
    ("b_x", "p_weight", "c_lifted_tensor_0"), ("placeholder", "get_attr"), ("arg0_1", "primals_1"),
    ("sym_size_int", "s0"), ("getitem", "copy_", "clone"), ("forward", "model"), ("None_", "True_"), ("z", "a"),
    ("_", "__"),
]  # fmt: skip


def make(names: list[str]) -> nn.Module:
    """A model whose arguments have these names; no two of them count alike."""
    assert not any(map(keyword.iskeyword, names))
    scope: dict = {}
    body = " + ".join(f"{name} * {number}" for number, name in enumerate(names, 2))
    exec(f"def forward(self, {', '.join(names)}):\n    return {body}", scope)
    return type("Model", (nn.Module,), {"forward": scope["forward"]})()


class Keywords(nn.Module):
    def forward(self, b, *, a, **rest):
        return b * 2 + a + rest["input"] * 5 + rest["C"] * 7


class Namesakes(nn.Module):
    """Buffers and arguments that have one name, all written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.ones(3))
        self.register_buffer("input", torch.full((3,), 2.0))

    def forward(self, input, x):
        input.add_(x)
        x.mul_(2)
        self.x.add_(input)
        self.input.sub_(1)
        return input + x + self.x * self.input


class Written(nn.Module):
    def forward(self, input):
        return input.add_(1)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU())


def recipe(factory: str, arguments, size: object = "n", **kwargs: object) -> dict:
    return {
        "name": "names",
        "model": {"factory": f"{__file__}:{factory}", "kwargs": kwargs},
        "inputs": {name: {"shape": [size, 3], "dtype": "float32"} for name in arguments},
        "buckets": {"n": [2, 4]} if size == "n" else {},
    }


def _assert_same(path, original: nn.Module, names) -> None:
    with aotair.load(path, enable_output_clone=True) as model:
        for size in (2, 4):
            given = {name: torch.randn(size, 3) for name in names}
            torch.testing.assert_close(model(**given), original(**given))
            torch.testing.assert_close(model(*given.values()), original(**given))


@pytest.mark.parametrize("names", NAMES, ids="-".join)
def test_arguments_keep_their_names_and_places(names, tmp_path):
    path = aotair.build(recipe("make", names, names=list(names)), tmp_path / "a.aotair")
    _assert_same(path, make(list(names)), names)


def test_arguments_among_keywords(tmp_path):
    names = ("b", "input", "a", "C")  # by position first what the method takes so; then as the recipe has them
    _assert_same(aotair.build(recipe("Keywords", names), tmp_path / "a.aotair"), Keywords(), names)


def test_a_module_of_torch_itself(tmp_path):
    _assert_same(aotair.build(recipe("linear", ["input"]), tmp_path / "a.aotair"), linear(), ["input"])


def test_arguments_and_buffers_of_one_name(tmp_path):
    given = recipe("Namesakes", ["input", "x"])
    given |= {
        "buckets": {},
        "inputs": {n: {"shape": [3], "dtype": "float32", "mutated": True} for n in given["inputs"]},
    }
    original = Namesakes()
    with aotair.load(aotair.build(given, tmp_path / "a.aotair"), enable_output_clone=True) as model:
        mine, theirs = ([torch.ones(3), torch.full((3,), 3.0)] for _ in range(2))
        for _ in range(3):
            torch.testing.assert_close(model(*mine), original(*theirs))
            torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(dict(model.state), dict(original.named_buffers()))


def test_a_write_into_an_argument_names_it_as_the_recipe_does(tmp_path):
    with pytest.raises(UnsupportedError, match=r"writes into its input 'input'(.|\n)*inputs\.input"):
        aotair.build(recipe("Written", ["input"]), tmp_path / "a.aotair")
