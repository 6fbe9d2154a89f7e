"""Which inputs does each rank have in a call of the proof, where ranks are called with inputs of their own?"""

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from aotair_runtime.call.buckets import choose, read_sizes
from aotair_runtime.format.mesh import ranks_of, replica_of
from aotair_runtime.format.schema import Bucket, EntryPoint, Program

from ..model.samples import random_inputs
from ..recipe.entry import EntryJob

# Inputs of a call of an entry point, not larger than a bucket; another for another number.
Others = Callable[[EntryPoint, Bucket, int], Sequence[torch.Tensor]]


class Replicas:
    """The ranks by what they are called with. One replica after the other has the inputs of a call; `others` says what
    the rest is called with, which is the same where there is none, or where all ranks are one replica."""

    def __init__(self, program: Program, others: Others | None):
        self._of = [replica_of(program.mesh, program.own_inputs, rank) for rank in range(ranks_of(program.mesh))]
        self._all, self._others, self._turn = list(dict.fromkeys(self._of)), others, 0

    def next(self) -> None:
        """Let the next replica have the inputs of calls."""
        self._turn += 1

    @property
    def called(self) -> list[int]:
        """The ranks that have the inputs of calls."""
        mine = self._all[self._turn % len(self._all)]
        return [rank for rank, replica in enumerate(self._of) if replica == mine]

    def first_like(self, rank: int) -> int:
        """The first rank with the same inputs."""
        return self._of.index(self._of[rank])

    def inputs(self, entry: EntryPoint, given: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Those of each rank. The first of those that are called writes into the given ones themselves."""
        first, theirs = self.called[0], dict.fromkeys(self._of, given)
        if self._others is not None and len(self._all) > 1:
            bucket = entry.buckets[choose(entry, read_sizes(entry, [tensor.shape for tensor in given]))]
            for number, replica in enumerate(self._all):
                if replica != self._of[first]:
                    theirs[replica] = self._others(entry, bucket, self._turn * len(self._all) + number)
        found = [[tensor.clone() for tensor in theirs[replica]] for replica in self._of]
        found[first] = list(given)
        return found


def random_others(jobs: Sequence[EntryJob]) -> Others:
    """Random inputs as the recipe has them; each dimension that is padded at its end, in its middle or at its least."""
    by_name = {job.entry: job for job in jobs}

    def others(entry: EntryPoint, bucket: Bucket, number: int) -> list[torch.Tensor]:
        chance, sizes = random.Random(number), dict[str, int]()
        for dim, most in zip(entry.dims, bucket.sizes, strict=True):
            least = max(dim.least, 1) if dim.paddable else most
            sizes[dim.name] = chance.choice((most, max(least, most // 2), least))
        found: Mapping[str, torch.Tensor] = random_inputs(by_name[entry.name], sizes, number)
        return [found[spec.name] for spec in entry.inputs]

    return others
