"""Each distinct tensor once: by its contents, kind, dtype and shape, under the first name it came with."""

import pytest
import safetensors.torch
import torch

from aotair.emit.constants import DistinctTensors
from aotair.model.tied_names import Names
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Constant


def test_each_distinct_weight_is_stored_once(built):
    weights = safetensors.torch.load_file(built("tied") / "weights.safetensors")
    assert list(weights) == ["a.weight"]
    program = read_program(built("tied"))
    assert [constant.name for constant in program.constants] == ["a.weight"]


# ---- alone -----------------------------------------------------------------------------------------------------------

NAMES = Names({"a": ("a", "b"), "b": ("a", "b"), "c": ("c",)}, frozenset({"a", "b", "c"}))
ONES = torch.ones(2, 3)


def test_equal_contents_go_by_the_first_name_they_came_with():
    found = DistinctTensors()
    assert found.name_of("x", ONES) == "x"
    assert found.name_of("y", ONES.clone()) == "x"
    assert found.name_of("z", ONES * 2) == "z"
    assert found.name_of("y", ONES) == "x", "as often as it is asked"
    assert found.constant("x") == Constant("x", "float32", (2, 3), "fixed", (("x",), ("y",)))


@pytest.mark.parametrize(
    "other",
    [
        ONES.double(),
        ONES.to(torch.int32),
        ONES.view(3, 2),
        ONES.view(6),
        ONES.view(2, 3, 1),
        ONES.view(torch.int32),  # the same bytes
        torch.zeros(2, 3),
        torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0 + 1e-6]]),
    ],
)
def test_another_dtype_shape_or_value_is_another_tensor(other):
    found = DistinctTensors()
    assert (found.name_of("x", ONES), found.name_of("y", other)) == ("x", "y")
    assert torch.equal(found.tensor("y"), other) and found.tensor("y").dtype == other.dtype


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, 3),
        torch.empty(0, dtype=torch.int64),
        torch.tensor(2.5),
        torch.ones(1),
        torch.tensor([True, False]),
        torch.randn(4).to(torch.bfloat16),
        torch.randn(4, dtype=torch.complex64),
        torch.tensor([float("nan"), -0.0]),
    ],
)
def test_tensors_of_every_kind_are_told_apart_by_their_bytes(tensor):
    found = DistinctTensors()
    assert found.name_of("x", tensor) == "x" == found.name_of("y", tensor.clone())
    assert found.constant("x").dtype == str(tensor.dtype).removeprefix("torch.")


def test_zeros_of_two_signs_are_two_tensors():
    found = DistinctTensors()
    assert found.name_of("x", torch.zeros(2)) != found.name_of("y", -torch.zeros(2))


def test_what_lies_otherwise_in_memory_is_equal_where_its_values_are():
    found = DistinctTensors()
    tensor = torch.arange(6.0).view(2, 3)
    assert found.name_of("x", tensor) == "x"
    assert found.name_of("y", tensor.t().contiguous().t()) == "x"
    assert found.name_of("z", tensor.t()) == "z"
    assert found.name_of("w", torch.cat([tensor, tensor])[2:]) == "x", "a part of another"
    assert found.tensor("z").is_contiguous()


def test_views_that_a_bit_marks_are_stored_as_what_they_stand_for():
    found = DistinctTensors()
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert found.name_of("x", tensor.conj()) == "x" and not found.tensor("x").is_conj()
    assert found.name_of("y", tensor.conj().resolve_conj()) == "x"
    assert found.name_of("z", tensor) == "z"
    assert found.name_of("w", tensor.conj().imag) == "w" and not found.tensor("w").is_neg()


def test_parameters_are_stored_without_their_gradients():
    found = DistinctTensors()
    found.name_of("x", torch.nn.Parameter(ONES))
    assert not found.tensor("x").requires_grad


def test_tied_names_are_one_group_under_the_first():
    found = DistinctTensors(NAMES)
    assert found.name_of("b", ONES) == "a"
    assert found.constant("a") == Constant("a", "float32", (2, 3), "weight", (("a", "b"),))
    assert found.name_of("c", ONES) == "a"
    assert found.constant("a").names == (("a", "b"), ("c",))


def test_kinds_never_share():
    found = DistinctTensors(NAMES)
    names = [found.name_of(name, ONES) for name in ("a", "literal", "other literal")]
    assert names == ["a", "literal", "literal"]
    assert [found.constant(name).kind for name in ("a", "literal")] == ["weight", "fixed"]


def test_weights_that_are_only_equal_stay_apart_where_nothing_is_shared():
    found = DistinctTensors(NAMES, share=False)
    assert [found.name_of(name, ONES) for name in ("a", "b", "c")] == ["a", "a", "c"]
    assert [found.name_of(name, ONES) for name in ("literal", "other literal")] == ["literal"] * 2


def test_a_tensor_that_nobody_stored_is_not_there():
    with pytest.raises(KeyError):
        DistinctTensors().tensor("x")
