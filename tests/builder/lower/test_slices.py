"""Calls cut along their first dimension: which, into how many, and with the same numbers."""

from nodes import for_device

import aotair
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Form


def test_calls_are_cut_into_slices_only_where_that_helps(tmp_path):
    wide = for_device("encoder", "npu") | {"buckets": {"batch": [64], "seq": [16]}}
    wide["model"] = wide["model"] | {"kwargs": {"width": 512, "heads": 2}}
    program = read_program(aotair.build(wide, tmp_path / "npu.aotair"))
    copied = [i for i in program.instructions if i.form == Form.COPY]
    assert len({i.node for i in copied}) == len(copied)
