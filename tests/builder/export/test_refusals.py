"""Why torch.export refuses a model, in words: each cause by what torch says of it, and by a model that has it."""

import dataclasses

import pytest
import torch
from exports import entry_of, model_of, shaped

from aotair.errors import ExportError, SizesError
from aotair.export.export import export
from aotair.export.refusals import explained

MODEL = model_of(lambda self, x: x)
JOB = entry_of(MODEL, {"x": shaped("n", "m", 4)}, {"n": [2, 8], "m": [3]})


class GuardOnDataDependentSymNode(Exception):
    """As torch's own, by its name."""


def said(text: str, kind: type = RuntimeError) -> ExportError:
    return explained(kind(text), JOB)


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("unhashable type: 'SymInt'\nmore", SizesError, "buckets: the model keeps things by size"),
        ("Constraints violated (n)! For", SizesError, "buckets: the model does not allow these sizes"),
        ("Not all values of n = ...", SizesError, "buckets: the model does not allow these sizes"),
        ("n was specialized to 4", SizesError, "buckets: the model does not allow these sizes"),
        ("Found <class 'a.b.Cache'> in output, which is not a known type", ExportError, "model: it returns a Cache"),
        ("copy__default: expand of", ExportError, "model: it puts a tensor of another shape in the place of a buffer"),
        ("a tensor with unresolved conjugated", ExportError, "model: it takes apart, or writes through, a conjugate"),
        ("Could not guard on data-dependent", ExportError, "inputs: the model's control flow or shapes depend on"),
        ("unbacked symbols", ExportError, "inputs: the model's control flow or shapes depend on"),
        ("anything else", ExportError, "model: torch.export cannot make one graph of it"),
        ("", ExportError, "model: torch.export cannot make one graph of it"),
    ],
)
def test_each_cause_is_told_by_its_text(text, kind, what):
    error = said(text)
    assert type(error) is kind and error.what.startswith(what)
    assert error.where == JOB.where and error.fix
    assert error.got if kind is SizesError else True


def test_the_kind_of_an_error_may_say_it_without_words():
    assert said("a guard", GuardOnDataDependentSymNode).what.startswith("inputs: ")
    assert said("a guard").what.startswith("model: ")


def test_the_first_line_is_what_came():
    assert said("\n\n  unbacked here  \n  there").got == "unbacked here"
    assert said("unhashable type: 'SymInt'\nthere").got == "unhashable type: 'SymInt'"


def test_of_an_unknown_cause_three_lines_and_the_kind_are_kept():
    error = said("one\n\n two \nthree\nfour", KeyError)
    assert error.got.startswith("KeyError: ") and "four" not in error.got.replace("\\n", "").split("three")[0]
    long = said("x" * 1000)
    assert len(long.got) == len("RuntimeError: ") + 400
    assert "torch.export.export(model, (), inputs, strict=False)" in long.fix


def test_what_torch_suggests_is_what_came_and_the_ranges_what_was_expected():
    text = "Constraints violated (n)!\n  - You marked n as dynamic\nSuggested fixes:\n  n = 4\n  k = 2*n\n"
    error = said(text)
    assert error.got == "torch.export found that it needs n = 4", "k is none of ours"
    assert error.expected == "a model that takes n from 2 to 8"
    assert said("specialized\n  k = 2*n\n").got == "torch.export found that it needs k = 2*n"
    assert said("Constraints violated (n)!").got == "torch.export found that it needs Constraints violated (n)!"


def test_the_line_of_the_model_is_named():
    try:
        _ = MODEL.forward(None).shape
    except AttributeError as error:
        assert "(at test_refusals.py:" in explained(error, JOB).what


# ---- models ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Opaque:
    x: torch.Tensor


def _by_size(self, x):
    return x * {2: 1.0, 4: 2.0}.get(x.shape[0], 3.0)


def _a_class(self, x):
    return Opaque(x)


def _a_branch(self, x):
    return x * 2 if x.sum() > 0 else x


def _an_item(self, x):
    return x[: int(x.sum().item())]


def _a_size(self, x):
    return x.view(4, -1)


def _fails(self, x):
    raise OSError("no file")


@pytest.mark.parametrize(
    ("forward", "kind", "says"),
    [
        (_by_size, SizesError, "buckets: "),
        (_a_class, ExportError, "model: it returns a Opaque"),
        (_a_branch, ExportError, "depend on the values of a tensor (at test_refusals.py:"),
        (_fails, ExportError, "model: torch.export cannot make one graph of it (at test_refusals.py:"),
    ],
)
def test_each_cause_is_told_of_a_model(forward, kind, says):
    model = model_of(forward)
    with pytest.raises(kind) as caught:
        export(model, entry_of(model, {"x": shaped("n", 3)}, {"n": [2, 4, 6]}))
    assert says in caught.value.what and caught.value.__cause__ is not None
