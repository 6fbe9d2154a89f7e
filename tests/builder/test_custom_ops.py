"""Ops that write into their arguments: custom ones in their functional wrapping."""

import models
import pytest
import torch
from cases import recipe

import aotair
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import NamespaceError

SHAPE = {"shape": [3, 4], "dtype": "float32"}
RECIPE = recipe("Accumulates", {"x": SHAPE, "total": SHAPE | {"mutated": True}})
ALLOWED = RECIPE | {"target": {"allow_namespaces": ["aotairtest"]}}


@pytest.mark.parametrize("off", [False, True])
def test_auto_functionalised_ops_are_decomposed_whatever_is_switched_off(tmp_path, off):
    config = {"debug": {"aclgraph": {"disable_reinplace_input_mutated_ops_pass": off}}}
    path = aotair.build(ALLOWED | {"config": config}, tmp_path / "x.aotair")
    program = read_program(path)
    copies = [i for i in program.instructions if program.ops[i.op].name == "aten::copy_"]
    assert copies == [], "a view that export made of the whole is seen through, with the pass on or off"
    with pytest.raises(NamespaceError, match="aotairtest::accumulate"):
        aotair.load(path)
    model = aotair.load(path, allow_namespaces=["aotairtest"], enable_output_clone=True)
    reference = models.Accumulates()
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    for turn in range(3):
        x = torch.full((3, 4), float(turn))
        torch.testing.assert_close(model(x, mine), reference(x, theirs))
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(model.state["seen"], reference.seen)


@pytest.mark.parametrize("noops", [True, False])
def test_what_an_op_writes_into_a_clone_stays_there(tmp_path, noops):
    given = recipe("WritesClones", {"x": SHAPE, "total": SHAPE | {"mutated": True}})
    given["config"] = {"experimental_config": {"remove_noop_ops": noops}}
    model = aotair.load(aotair.build(given, tmp_path / "x.aotair"), allow_namespaces=["aotairtest"])
    reference = models.WritesClones()
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    for _ in range(2):
        x = torch.randn(3, 4)
        before = x.clone()
        torch.testing.assert_close(list(model(x, mine)), list(reference(x, theirs)))
        torch.testing.assert_close((mine, x), (theirs, before))
