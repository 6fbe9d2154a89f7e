"""The debugger on a device: a kernel that gives other numbers than the host's is named, and so is a missing wait."""

from dataclasses import replace
from pathlib import Path

import pytest
import simnpu
import torch
from cases import RECIPES

import aotair
from aotair.builder import debug
from aotair.debugger.search import Asked
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.errors import ArtifactError
from aotair_runtime.format import codec
from aotair_runtime.format.schema import Form


def for_npu(name: str) -> dict:
    return {**RECIPES[name], "target": {"device": "npu"}}


@pytest.mark.parametrize("name", ["encoder", "counter", "streams", "branches", "ascend_decode"])
def test_nothing_is_found_where_nothing_is_wrong(name: str):
    found = debug(for_npu(name), Asked())
    assert all(one.is_right and one.device == "npu" for one in found)
    assert {"one by one, on npu", "captured, on npu"} <= {rung.form for rung in found[0].rungs}


def test_a_kernel_of_the_device_that_rounds_otherwise_is_named(tmp_path: Path):
    recipe = for_npu("encoder")
    program = open_artifact(aotair.build(recipe, tmp_path / "a.aotair")).program
    name = next(op.name for op in program.ops if "gelu" in op.name)
    op = simnpu._op(name)

    def rounded(*args: object, **kwargs: object) -> torch.Tensor:
        result = op(*args, **kwargs)
        return result.copy_(result.bfloat16())

    simnpu.register(name, rounded)
    try:
        found = debug(recipe, Asked(bucket="batch=1, seq=4"))[-1]
    finally:
        simnpu.register(name)
    (finding,) = found.findings
    assert (finding.kind, finding.by) == ("kernel", name) and "npu" in finding.what
    assert [rung.form for rung in found.rungs][-1] == "one by one, on npu"


def test_a_wait_that_is_missing_is_named(tmp_path: Path):
    recipe = for_npu("branches")
    path = aotair.build(recipe, tmp_path / "a.aotair")
    program = open_artifact(path).program
    entry = program.entry_points[0]
    bucket = entry.buckets[0]
    waits = [place for place, number in enumerate(bucket.code) if program.instructions[number].form == Form.WAIT]
    named = 0
    for place in waits[1:-1]:
        code = bucket.code[:place] + bucket.code[place + 1 :]
        bad = replace(program, entry_points=(replace(entry, buckets=(replace(bucket, code=code),)),))
        (path / "program.msgpack").write_bytes(codec.dump(bad))
        (path / "debug.msgpack").unlink(missing_ok=True)
        try:
            artifact = open_artifact(path)
        except ArtifactError:
            continue  # streams that do not fork and join: a load refuses them
        found = debug(recipe, Asked(), artifact)[-1]
        named += any(finding.kind == "wait" and finding.certain for finding in found.findings)
    assert named >= 2
