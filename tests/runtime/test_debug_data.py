"""debug.msgpack: where instructions come from; its bytes, and files that are damaged, hostile or of another program."""

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.errors import AlteredError, ArtifactError, FormatVersionError, MalformedError
from aotair_runtime.format.debug_data import DebugData, Made, dump, parse

PROGRAM = b"the bytes of a program"
TEXT = st.text(max_size=8)
MADE = st.builds(Made, TEXT, TEXT, TEXT)


@given(st.lists(MADE, max_size=20))
def test_what_is_written_is_read(made: list[Made]):
    data = DebugData(tuple(made))
    assert parse(dump(data, PROGRAM), PROGRAM, len(made), "here") == data
    assert dump(data, PROGRAM) == dump(DebugData(tuple(made)), PROGRAM)


def test_nothing_is_known_of_instructions_where_nothing_was_recorded():
    assert DebugData().of(7) == Made("", "", "")


def envelope(*, magic="aotair debug", version=1, program=PROGRAM, body: object, digest: bytes | None = None) -> bytes:
    packed = msgpack.packb(body)
    sums = [hashlib.sha256(program).digest(), digest or hashlib.sha256(packed).digest()]
    return msgpack.packb([magic, version, *sums, packed])


GOOD = [["a.py:1"], ["layer"], ["export"], [0, 0, 0]]


@pytest.mark.parametrize(
    ("data", "error"),
    {
        "nothing": (b"", MalformedError),
        "noise": (b"\xc1" * 40, MalformedError),
        "cut": (envelope(body=GOOD)[:-3], MalformedError),
        "a map": (msgpack.packb({"a": 1}), MalformedError),
        "another magic": (envelope(magic="aotair", body=GOOD), MalformedError),
        "another version": (envelope(version=2, body=GOOD), FormatVersionError),
        "true for a version": (envelope(version=True, body=GOOD), FormatVersionError),
        "another digest": (envelope(digest=b"x" * 32, body=GOOD), AlteredError),
        "another program": (envelope(program=b"another", body=GOOD), AlteredError),
        "three tables": (envelope(body=GOOD[:3]), MalformedError),
        "a number for a table": (envelope(body=[7, ["m"], ["p"], [0, 0, 0]]), MalformedError),
        "a number for a text": (envelope(body=[[7], ["m"], ["p"], [0, 0, 0]]), MalformedError),
        "a number beyond its table": (envelope(body=[["l"], ["m"], ["p"], [0, 1, 0]]), MalformedError),
        "a negative number": (envelope(body=[["l"], ["m"], ["p"], [0, -1, 0]]), MalformedError),
        "true for a number": (envelope(body=[["l", "k"], ["m"], ["p"], [True, 0, 0]]), MalformedError),
        "more instructions": (envelope(body=[["l"], ["m"], ["p"], [0] * 6]), MalformedError),
        "a huge array": (envelope(body=GOOD[:3]) + b"\xdd\xff\xff\xff\xff", MalformedError),
    }.values(),
)
def test_what_is_not_good_is_refused(data: bytes, error: type[ArtifactError]):
    with pytest.raises(error) as caught:
        parse(data, PROGRAM, 1, "somewhere/debug.msgpack")
    assert caught.value.where == "somewhere/debug.msgpack"


def test_a_build_says_of_each_instruction_where_it_comes_from(built):
    artifact = open_artifact(built("encoder"))
    data = read_debug_data(artifact)
    assert len(data.made) == len(artifact.program.instructions) > 0
    assert all(made.line.startswith(("models.py:", "cases.py:")) and made.module and made.passes for made in data.made)


def test_an_artifact_without_the_file_loads_and_says_that_nothing_is_known(built, tmp_path: Path):
    path = tmp_path / "a.aotair"
    shutil.copytree(built("encoder"), path)
    (path / "debug.msgpack").unlink()
    assert read_debug_data(open_artifact(path)) == DebugData()


def test_one_that_was_exchanged_is_refused_when_it_is_read_and_no_load_reads_it(built, tmp_path: Path):
    path = tmp_path / "a.aotair"
    shutil.copytree(built("encoder"), path)
    shutil.copy(built("tied") / "debug.msgpack", path / "debug.msgpack")
    artifact = open_artifact(path)
    with pytest.raises(AlteredError, match="of another program"):
        read_debug_data(artifact)
    artifact = replace(artifact, folder=None)
    (path / "debug.msgpack").write_bytes(b"")
    with pytest.raises(MalformedError):
        read_debug_data(artifact)


@dataclass(frozen=True)
class Signed:
    """A gate that let in what has these digests."""

    digests: dict[str, str]

    def admit(self, folder: object, program: bytes) -> dict[str, str]:
        return self.digests


def test_where_a_signature_was_asked_for_it_covers_this_file_too(built):
    artifact = open_artifact(built("encoder"))
    digest = hashlib.sha256((built("encoder") / "debug.msgpack").read_bytes()).hexdigest()
    good = replace(artifact, gate=Signed({"debug.msgpack": digest}))
    assert read_debug_data(good) == read_debug_data(artifact)
    for digests in ({}, {"debug.msgpack": "0" * 64}):
        with pytest.raises(AlteredError, match="signed"):
            read_debug_data(replace(artifact, gate=Signed(digests)))
