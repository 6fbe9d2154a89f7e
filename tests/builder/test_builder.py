"""The line from a recipe to an artifact: what is asked for, in which order, and what is checked at its end."""

import pytest
from cases import RECIPES

import aotair
from aotair.errors import InternalError, ProofError
from aotair_runtime.call.entry import Entry
from aotair_runtime.errors import CaptureError


def _planted(error: Exception):
    """A call that fails where inputs are used in place."""
    replay = Entry._replay

    def planted(self, *args):
        if not self._plans._clone_input:
            raise error
        return replay(self, *args)

    return planted


@pytest.mark.parametrize(
    "error, found, words",
    [
        (CaptureError("planted"), ProofError, r"cannot be used with clone_input=False.*: planted"),
        (RuntimeError("planted"), InternalError, r"fails with clone_input=False.*: planted"),
    ],
)
def test_a_way_of_loading_that_fails_fails_the_build(error, found, words, tmp_path, monkeypatch):
    monkeypatch.setattr(Entry, "_replay", _planted(error))
    with pytest.raises(found, match=words):
        aotair.build(RECIPES["linear"], tmp_path / "a.aotair")


def test_a_way_of_loading_that_answers_otherwise_fails_the_build(tmp_path, monkeypatch):
    replay = Entry._replay

    def otherwise(self, *args):
        outputs = replay(self, *args)
        return outputs if self._plans._clone_input else [output + 1 for output in outputs]

    monkeypatch.setattr(Entry, "_replay", otherwise)
    with pytest.raises(ProofError, match="answers differently with clone_input=False"):
        aotair.build(RECIPES["linear"], tmp_path / "a.aotair")
