"""Each distinct tensor once: by its contents, kind, dtype and shape, under the first name it came with."""

import safetensors.torch

from aotair_runtime.artifact.open import read_program


def test_each_distinct_weight_is_stored_once(built):
    weights = safetensors.torch.load_file(built("tied") / "weights.safetensors")
    assert list(weights) == ["a.weight"]
    program = read_program(built("tied"))
    assert [constant.name for constant in program.constants] == ["a.weight"]
