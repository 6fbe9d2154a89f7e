"""What a newcomer's model or pass may hold that no artifact can: each is refused by name, with what to do."""

import operator

import pytest
import torch
from torch import nn

import aotair
from aotair.errors import ExportError, GraphError, ModelError, ProofError, UnsupportedError
from aotair_runtime.errors import ShapeError

X = {"shape": ["n", 3], "dtype": "float32"}


class Cache:
    """No type that pytree knows."""


def _returns_a_size(self, x):
    return x * 2, x.shape[0]


def _returns_sizes_alone(self, x):
    return x.shape


def _returns_size_arithmetic(self, x):
    return {"a": x, "n": x.shape[0] * 2 + 1}


def _returns_a_cache(self, x):
    return x * 2, Cache()


def _returns_a_dtype(self, x):
    return x, x.dtype


def _sparse(self, x):
    return torch.sparse.mm(self.sparse, x[:3])


def _scripted(self, x):
    return self.scripted(x)


def _quantised(self, x):
    return x + self.quantised.dequantize()


def _meta(self, x):
    return x + self.meta


def _plus(self, x):
    return x + 1


def _needs_two(self, x):
    return x - x[1]


def _needs_pairs(self, x):
    return (x.view(2, -1, 3) * 2).reshape(-1, 3)


MODELS = {
    "size": (_returns_a_size, UnsupportedError, r"a size as the output 1 \(test_no_tracebacks\.py:\d+, in _returns_a"),
    "sizes": (_returns_sizes_alone, UnsupportedError, "a size as the output 0"),
    "size arithmetic": (_returns_size_arithmetic, UnsupportedError, "a size as the output 1"),
    "cache": (_returns_a_cache, ExportError, r"it returns a Cache(.|\n)*fix: return the tensors in it"),
    "dtype": (_returns_a_dtype, ExportError, "it returns a dtype"),
    "sparse buffer": (_sparse, UnsupportedError, "the model's tensor sparse is sparse_coo"),
    "sparse parameter": (_sparse, UnsupportedError, "the model's tensor sparse is sparse_coo"),
    "sparse attribute": (_sparse, UnsupportedError, "the model's tensor sparse is sparse_coo"),
    "compressed buffer": (_sparse, UnsupportedError, "the model's tensor sparse is sparse_csr"),
    "quantised buffer": (_quantised, UnsupportedError, "the model's tensor quantised is quantised"),
    "meta buffer": (_meta, UnsupportedError, r"the model's tensor meta is without values"),
    "scripted layer": (_scripted, ModelError, r"scripted is a \w*ScriptModule(.|\n)*before torch\.jit"),
}


def make(name: str) -> nn.Module:
    model = type("Model", (nn.Module,), {"forward": MODELS[name][0]})()
    eye = torch.eye(3).to_sparse_csr() if name == "compressed buffer" else torch.eye(3).to_sparse()
    if name.startswith(("sparse b", "compressed")):
        model.register_buffer("sparse", eye)
    model.sparse = nn.Parameter(eye, requires_grad=False) if name == "sparse parameter" else eye
    if name == "quantised buffer":
        model.register_buffer("quantised", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    if name == "meta buffer":
        model.register_buffer("meta", torch.ones(3, device="meta"))
    if name == "scripted layer":
        model.scripted = torch.jit.script(nn.Linear(3, 3))
    return model


def plus() -> nn.Module:
    return type("Model", (nn.Module,), {"forward": _plus})()


def needs_two() -> nn.Module:
    return type("Model", (nn.Module,), {"forward": _needs_two})()


def needs_pairs() -> nn.Module:
    return type("Model", (nn.Module,), {"forward": _needs_pairs})()


def scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(3, 3))


def traced() -> nn.Module:
    return torch.jit.trace(nn.Linear(3, 3), torch.zeros(2, 3))


def recipe(factory: str, config: dict | None = None, **kwargs: str) -> dict:
    model = {"factory": f"{__file__}:{factory}", "kwargs": kwargs}
    return {"name": "new", "model": model, "inputs": {"x": X}, "buckets": {"n": [4, 8]}, "config": config or {}}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_no_artifact_can_hold(name, tmp_path):
    _, kind, words = MODELS[name]
    with pytest.raises(kind, match=words) as caught:
        aotair.build(recipe("make", name=name), tmp_path / "a.aotair")
    assert caught.value.fix and caught.value.where
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factory", ["scripted", "traced"])
def test_a_script_instead_of_a_module(factory, tmp_path):
    given = recipe(factory)
    given["inputs"] = {"input": X}
    with pytest.raises(ModelError, match="the model is a "):
        aotair.build(given, tmp_path / "a.aotair")


def test_a_padded_model_that_fails_at_small_sizes_serves_the_others(tmp_path):
    given = recipe("needs_two")
    given["inputs"] = {"x": X | {"pad": "any"}}
    with aotair.load(aotair.build(given, tmp_path / "a.aotair")) as model:
        torch.testing.assert_close(model(torch.ones(2, 3)), needs_two()(torch.ones(2, 3)))
        with pytest.raises(ShapeError, match="the model takes no n below 2"):
            model(torch.ones(1, 3))


def test_a_padded_model_that_fails_at_sizes_between(tmp_path):
    given = recipe("needs_pairs")
    aotair.build(given, tmp_path / "exact.aotair")
    given["inputs"] = {"x": X | {"pad": "any"}}
    with pytest.raises(ProofError, match=r"the original model fails at sizes(.|\n)*RuntimeError(.|\n)*x \[\d, 3\]"):
        aotair.build(given, tmp_path / "a.aotair")


TABLE = torch.ones(3)
TARGETS = {
    "function": (torch.add, None),
    "operator": (operator.add, None),
    "packet": (torch.ops.aten.add, None),
    "lambda": (lambda a, b: torch.stack([a, a * 0 + b]).sum(0), None),
    "method": (torch.Tensor.add, None),
    "impossible": (torch.nn.functional.conv2d, r"calls conv2d at add(.|\n)*got: TypeError"),
    "no tensor": (lambda a, b: "x", r"calls <lambda> at add(.|\n)*got: it returns 'x'"),
    "own tensor": (lambda a, b: a + TABLE, r"calls <lambda> at add(.|\n)*a tensor of its own"),
    "values": (lambda a, b: a + b * float(a.sum()), r"calls <lambda> at add(.|\n)*got: "),
}


@pytest.mark.parametrize("when", ["pre", "post"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_pass_that_calls_no_overload(target, when, tmp_path):
    called, words = TARGETS[target]

    def replaces(gm, example_inputs, config):
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.add.Tensor:
                node.target = called

    given = {f"post_grad_custom_{when}_pass": replaces}
    if words is None:
        aotair.build(recipe("plus"), tmp_path / "a.aotair", **given)
        return
    with pytest.raises(GraphError, match=words):
        aotair.build(recipe("plus"), tmp_path / "a.aotair", **given)
