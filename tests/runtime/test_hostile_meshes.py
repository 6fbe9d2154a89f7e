"""A list of programs for several meshes is untrusted too: what it says is checked before any of them is believed."""

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from several_meshes import DEEP, MESHES, SHARED, built
from spoilt import plain, spoil

import aotair
from aotair_runtime.artifact.asked import Asked, asked_for
from aotair_runtime.artifact.digests import described
from aotair_runtime.artifact.open import open_artifact, read_golden, read_programs
from aotair_runtime.errors import (
    AlteredError,
    AotairError,
    ArtifactError,
    MalformedError,
    NotAnArtifactError,
    TruncatedError,
)
from aotair_runtime.format import codec
from aotair_runtime.format.schema import FORMAT_OF_SEVERAL, MAGIC, Axis, File, OneOf, Pieces, Program, Several, Stored
from aotair_runtime.format.several import check_several, program_of

Change = Callable[[Several], Several]
STAGES = [{"pp": 2}, {}, {"pp": 4}]


@pytest.fixture
def copy(common_folder: Path, tmp_path: Path) -> Path:
    """A copy of a good artifact, to be spoilt."""
    return Path(shutil.copytree(built(common_folder, SHARED, MESHES), tmp_path / "spoilt.aotair"))


@pytest.fixture
def staged(common_folder: Path, tmp_path: Path) -> Path:
    """The same, of one whose constants lie in pieces and which has golden tensors of each program's own."""
    return Path(shutil.copytree(built(common_folder, DEEP, STAGES), tmp_path / "staged.aotair"))


def read(path: Path) -> Several:
    found = codec.parse_any((path / "program.msgpack").read_bytes(), "x")
    assert isinstance(found, Several)
    return found


def rewrite(path: Path, change: Change) -> Path:
    """Change the list and give it a right digest again, as an attacker would."""
    (path / "program.msgpack").write_bytes(codec.dump_several(change(read(path))))
    return path


def member(number: int, **fields: object) -> Change:
    """The program of that number with other fields in the list."""

    def change(several: Several) -> Several:
        made = replace(several.programs[number], **fields)
        return replace(several, programs=(*several.programs[:number], made, *several.programs[number + 1 :]))

    return change


def inside(number: int, change: Callable[[Program], Program]) -> Change:
    """The program of that number changed itself."""

    def made(several: Several) -> Several:
        program = codec.parse_body(several.programs[number].body, "x")
        return member(number, body=codec.dump_body(change(program)))(several)

    return made


def stored(name: str, **fields: object) -> Change:
    """A tensor of the list, described otherwise."""

    def change(several: Several) -> Several:
        made = tuple(replace(one, **fields) if one.name == name else one for one in several.stored)
        return replace(several, stored=made)

    return change


def renamed(number: int, to: str) -> Callable[[Program], Program]:
    """The constant of that number by another name."""

    def change(program: Program) -> Program:
        made = replace(program.constants[number], name=to)
        return replace(program, constants=(*program.constants[:number], made, *program.constants[number + 1 :]))

    return change


def more(several: Several, count: int) -> Several:
    """With so many programs more, each for a mesh of its own."""
    first = several.programs[0]
    others = tuple(replace(first, mesh=(Axis("x", 2 + number),)) for number in range(count))
    return replace(several, programs=(*several.programs, *others))


FILE = File("golden.1.safetensors", 4, "0" * 64)
WRONG: dict[str, Change] = {
    "no program": lambda s: replace(s, programs=()),
    "one program": lambda s: replace(s, programs=s.programs[:1]),
    "seventeen programs": lambda s: more(s, 14),
    "two programs for a mesh": lambda s: replace(s, programs=(*s.programs, s.programs[1])),
    "two programs for one rank": lambda s: replace(s, programs=(*s.programs, s.programs[0])),
    "one rank with an axis": member(0, mesh=(Axis("tp", 1),)),
    "the mesh of another program": member(0, mesh=(Axis("tp", 8),)),
    "no mesh, of a program that has one": lambda s: replace(s, programs=(replace(s.programs[1], mesh=()),) * 2),
    "an axis with an odd name": member(1, mesh=(Axis("\x1b[31m", 2),)),
    "two axes of one name": member(1, mesh=(Axis("tp", 2), Axis("tp", 2))),
    "an axis without ranks": member(1, mesh=(Axis("tp", 0),)),
    "a billion ranks": member(1, mesh=(Axis("tp", 1 << 30),)),
    "another name than its programs": lambda s: replace(s, name="other"),
    "a program with files of its own": inside(0, lambda p: replace(p, files=(FILE,))),
    "a program for another mesh": inside(0, lambda p: replace(p, mesh=(Axis("tp", 2),))),
    "a body that is no program": member(0, body=b"\x90"),
    "a body that is a list of programs": lambda s: member(0, body=codec.dump_body(s))(s),
    "a program that breaks a rule": inside(0, lambda p: replace(p, alignment=3)),
    "a constant that is not stored": inside(0, renamed(0, "nothing")),
    "two constants in one tensor": inside(0, lambda p: renamed(0, p.constants[1].name)(p)),
    "a tensor twice": lambda s: replace(s, stored=(*s.stored, s.stored[0])),
    "a tensor of another shape": stored("up.weight", shape=(16, 24)),
    "a tensor of another dtype": stored("up.weight", dtype="int32"),
    "a tensor of no dtype": stored("up.weight", dtype="object"),
    "a tensor with a negative size": stored("up.weight", shape=(-24, 16)),
    "a tensor that no memory holds": stored("up.weight", shape=(1 << 40, 1 << 40)),
    "a tensor that the file lacks": lambda s: replace(s, stored=(*s.stored, Stored("more", "float32", (4,)))),
    "a tensor of a terabyte": lambda s: replace(s, stored=(*s.stored, Stored("more", "float32", (1 << 38,)))),
    "the tensors of one program alone": lambda s: replace(s, stored=tuple(t for t in s.stored if "#" not in t.name)),
    "golden tensors elsewhere": member(1, golden=(replace(FILE, name="../golden.1.safetensors"),)),
    "golden tensors of another program": member(1, golden=(replace(FILE, name="golden.0.safetensors"),)),
    "golden tensors twice": member(1, golden=(FILE, FILE)),
    "golden tensors of an impossible length": member(1, golden=(replace(FILE, nbytes=-1),)),
    "a digest that is none": member(1, golden=(replace(FILE, nbytes=1 << 27, parts=("x", "y")),)),
    "no weights": lambda s: replace(s, files=s.files[1:]),
    "a file twice": lambda s: replace(s, files=(*s.files, s.files[0])),
    "a file elsewhere": lambda s: replace(s, files=(*s.files, replace(FILE, name="files/../../x"))),
    "a golden file among those of all": lambda s: replace(s, files=(*s.files, FILE)),
    "pieces of a constant that there is not": member(0, pieces=(Pieces(99, ("up.weight",)),)),
    "pieces of a negative constant": member(0, pieces=(Pieces(-1, ("up.weight",)),)),
    "pieces of a constant that nobody cuts": member(0, pieces=(Pieces(0, ("up.weight", "up.bias")),)),
    "no pieces": member(0, pieces=(Pieces(0, ()),)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_list_of_programs_says_is_checked(copy: Path, wrong: str):
    rewrite(copy, WRONG[wrong])
    with pytest.raises(ArtifactError):
        read_programs(copy)
        open_artifact(copy, asked=Asked(()))
    with pytest.raises(AotairError):
        aotair.load(copy, mesh={})


IN_PIECES: dict[str, Callable[[Pieces], tuple[Pieces, ...]]] = {
    "a piece too few": lambda p: (replace(p, names=p.names[:1]),),
    "a piece too many": lambda p: (replace(p, names=(*p.names, p.names[0])),),
    "a piece that is not stored": lambda p: (replace(p, names=("nothing", p.names[1])),),
    "a piece of another shape": lambda p: (replace(p, names=("head.weight", p.names[1])),),
    "a constant twice": lambda p: (p, p),
    "a piece that another constant has": lambda p: (p, replace(p, constant=p.constant + 1)),
}


@pytest.mark.parametrize("wrong", IN_PIECES)
def test_pieces_are_checked(staged: Path, wrong: str):
    first, *others = read(staged).programs[0].pieces
    rewrite(staged, member(0, pieces=(*IN_PIECES[wrong](first), *others)))
    with pytest.raises(MalformedError):
        open_artifact(staged, asked=asked_for({"pp": 2}))


def test_a_piece_in_the_file_is_compared_with_the_list(staged: Path):
    """Whoever changes both files and all digests gets no tensor of another shape into the model."""
    tensors = load_file(staged / "weights.safetensors")
    tensors["layers.2.step"] = tensors["layers.2.step"].view(4, 4)
    save_file(tensors, staged / "weights.safetensors")
    described_anew = described(staged / "weights.safetensors")
    rewrite(staged, lambda s: replace(s, files=(described_anew, *s.files[1:])))
    with pytest.raises(MalformedError, match="not what the program expects"):
        open_artifact(staged, asked=asked_for({"pp": 2}))


def test_a_program_that_is_not_asked_for_is_not_looked_at_by_a_load_but_where_all_are(copy: Path):
    rewrite(copy, member(2, body=b"\xc1"))
    aotair.load(copy, mesh={}).close()
    with pytest.raises(ArtifactError):
        read_programs(copy)
    with pytest.raises(ArtifactError):
        open_artifact(copy, asked=asked_for({"tp": 4}))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_list(copy: Path, share: float):
    whole = (copy / "program.msgpack").read_bytes()
    (copy / "program.msgpack").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises((TruncatedError, NotAnArtifactError)):
        aotair.load(copy)


def test_golden_tensors_of_a_programs_own_that_are_altered_or_missing(staged: Path):
    artifact = open_artifact(staged, asked=asked_for({"pp": 4}))
    name = artifact.program.files[-1].name
    assert name == "golden.2.safetensors"
    data = bytearray((staged / name).read_bytes())
    data[-1] ^= 1
    (staged / name).write_bytes(data)
    with pytest.raises(AlteredError):
        read_golden(open_artifact(staged, asked=asked_for({"pp": 4})))
    (staged / name).unlink()
    with pytest.raises(TruncatedError):
        read_golden(open_artifact(staged, asked=asked_for({"pp": 4})))


def test_a_link_in_the_place_of_golden_tensors_is_not_followed(staged: Path, tmp_path: Path):
    name = "golden.2.safetensors"
    (staged / name).rename(tmp_path / "elsewhere")
    (staged / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MalformedError):
        open_artifact(staged, asked=asked_for({"pp": 4}))


def test_one_program_in_the_format_of_several_and_several_in_that_of_one_are_refused(copy: Path):
    program, several = codec.parse_body(read(copy).programs[0].body, "x"), read(copy)
    for version, body in ((FORMAT_OF_SEVERAL, codec.dump_body(program)), (6, codec.dump_body(several))):
        data = msgpack.packb([MAGIC, version, hashlib.sha256(body).digest(), body])
        (copy / "program.msgpack").write_bytes(data)
        with pytest.raises(MalformedError):
            aotair.load(copy)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_changed_value_anywhere_is_refused_or_harmless(common_folder: Path, data):
    """Walk to a random place of the list, or of a program in it, and put something else there."""
    whole = (built(common_folder, DEEP, STAGES) / "program.msgpack").read_bytes()
    body = msgpack.unpackb(msgpack.unpackb(whole)[3])
    within, number = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    inner = msgpack.unpackb(body[3][number][3]) if within else body
    spoil(data, inner, plain(leaves=5))
    if within:
        body[3][number][3] = msgpack.packb(inner)
    packed = msgpack.packb(body)
    with contextlib.suppress(ArtifactError):
        found = codec.parse_any(msgpack.packb([MAGIC, FORMAT_OF_SEVERAL, hashlib.sha256(packed).digest(), packed]), "x")
        assert isinstance(found, Several)
        check_several(found, "x")
        for one in range(len(found.programs)):
            program_of(found, one, "x")


def test_errors_of_ours_alone_come_of_a_mesh_that_is_asked_for(copy: Path):
    for mesh in ({"tp": 3}, {"x": 1 << 40}, {"tp": 2, "dp": 2}):
        with pytest.raises(AotairError):
            open_artifact(copy, asked=asked_for(mesh))


def test_the_list_says_what_stands_in_it(copy: Path):
    several = read(copy)
    assert [type(one) for one in several.programs] == [OneOf] * 3
    assert codec.dump_several(several) == (copy / "program.msgpack").read_bytes()
