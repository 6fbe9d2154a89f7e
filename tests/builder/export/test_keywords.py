"""What inputs are called while the model is exported: names of Python, each another."""

import keyword

import pytest
from exports import entry_of, model_of, shaped

from aotair.export.keywords import keywords

MODEL = model_of(lambda self, **inputs: inputs)


def named(*names: str) -> dict[str, str]:
    return keywords(entry_of(MODEL, {name: shaped(1) for name in names}))


@pytest.mark.parametrize("name", ["x", "input_ids", "_hidden", "self", "print", "A9"])
def test_what_is_a_name_already_stays_as_it_is(name):
    assert named(name) == {name: name}


@pytest.mark.parametrize(
    ("name", "word"),
    [("batch.ids", "batch_ids"), ("layers.0", "layers_0"), ("a.b.c-d", "a_b_c_d"), ("class", "class_"), ("a.ü", "a_ü")],
)
def test_what_is_no_name_of_python_becomes_one(name, word):
    assert named(name) == {name: word}


def test_no_two_inputs_get_one_word():
    found = named("a.b", "a_b", "a_b_")
    assert found == {"a.b": "a_b__", "a_b": "a_b", "a_b_": "a_b_"}
    assert named("x.y-z", "x.y.z") == {"x.y-z": "x_y_z", "x.y.z": "x_y_z_"}


@pytest.mark.parametrize("names", [("a.b", "a.c", "a_b"), ("lambda", "lambda_"), ("x.class", "x_class", "class")])
def test_all_are_names_in_the_order_of_the_inputs(names):
    found = named(*names)
    assert list(found) == list(names) and len(set(found.values())) == len(names)
    assert all(word.isidentifier() and not keyword.iskeyword(word) for word in found.values())
    assert all(found[name] == name for name in names if name.isidentifier() and not keyword.iskeyword(name))
