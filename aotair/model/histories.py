"""Whether what a call of the model answers depends on the calls before it: on what the first one made, kept and did not
make again.

A cache that is filled at the first call is a constant, and right for every call, or it holds something of that call's
inputs or sizes. Which of the two is seen by calling again from the beginning, with and without another call before.
"""

import torch

from ..errors import ModelError, UnsupportedError
from ..recipe.entry import EntryJob
from ..recipe.job import Job
from .held import Snapshot
from .hidden_state import Calls, Results, equal_results, first_call, is_another, some_names
from .reference import Original

_SMALLEST, _LARGEST = 0, -1


class Beginning:
    """A model before its first call."""

    def __init__(self, model: torch.nn.Module, job: Job):
        self._model, self._job, self._snapshot = model, job, Snapshot(model)
        self._original = Original(model, job.entries[0])
        self._buffers = dict(model.named_buffers())

    def refuse_dependence(self) -> None:
        """Raises UnsupportedError where the calls so far have left the model with other values, and a call from the
        beginning answers otherwise after another one than alone."""
        changed = self._snapshot.changed()
        if not changed:
            return
        now, buffers = Snapshot(self._model), dict(self._model.named_buffers())
        kept = {name for name, buffer in self._buffers.items() if not is_another(buffers.get(name), buffer)}
        try:
            for one in self._job.entries:
                for bucket, before in ((_SMALLEST, _LARGEST), (_LARGEST, _SMALLEST)):
                    self._refuse(one, bucket, before, changed, kept)
        finally:
            now.restore()

    def _refuse(self, one: EntryJob, bucket: int, before: int, changed: list[str], kept: set[str]) -> None:
        self._begin()
        alone = self._answer(one, bucket, kept)
        for other in self._job.entries:
            self._begin()
            try:
                first_call(self._model, Calls(self._model, other, before, 2))
            except ModelError:
                continue  # it has no answer to spoil another one's with
            after = self._answer(one, bucket, kept)
            if alone is after is None or (alone is not None and equal_results(alone, after)):
                continue
            raise UnsupportedError(
                f"the model keeps {some_names(changed)} of one call, and later calls answer otherwise",
                where=one.where,
                expected="outputs that follow from the inputs and from registered buffers",
                fix="compute it in __init__, or from the inputs at each call; what calls hand on has to be a buffer "
                "that they write in place",
            )

    def _answer(self, one: EntryJob, bucket: int, kept: set[str]) -> Results | None:
        """What a call of the model as it is now returns; None where it fails."""
        try:
            return Calls(self._model, one, bucket, 1, kept).make()
        except ModelError:
            return None

    def _begin(self) -> None:
        self._snapshot.restore()
        self._original.reset()
