"""What the proof calls ranks with that have inputs of their own."""

from pathlib import Path

import routed
import torch

import aotair
from aotair.prove.replicas import Replicas, random_others
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.open import read_program


def test_one_replica_after_the_other_has_the_inputs(tmp_path: Path):
    recipe = routed.recipe(dp=2, tp=2)
    program = read_program(aotair.build(recipe, tmp_path / "a.aotair"))
    (entry,), jobs = program.entry_points, job_of(parse_recipe(recipe)).entries
    replicas, given, sizes = Replicas(program, random_others(jobs)), [torch.full((2, 3), 7)], set()
    for turn in range(12):
        mine = replicas.called
        assert mine == ([0, 1] if turn % 2 == 0 else [2, 3]) and [replicas.first_like(r) for r in range(4)] == [
            0,
            0,
            2,
            2,
        ]
        inputs = [tensors[0] for tensors in replicas.inputs(entry, given)]
        assert inputs[mine[0]] is given[0] and torch.equal(inputs[mine[1]], given[0])
        theirs = [one for rank, one in enumerate(inputs) if rank not in mine]
        assert torch.equal(*theirs) and not torch.equal(theirs[0], given[0])
        assert theirs[0].shape[0] <= 3 and theirs[0].shape[1] <= 4, "larger than the bucket of the call"
        sizes.add(tuple(theirs[0].shape))
        replicas.next()
    assert len(sizes) > 2
    alike = Replicas(program, None).inputs(entry, given)
    assert all(torch.equal(tensors[0], given[0]) for tensors in alike)
