"""Nothing that an artifact says is obeyed by a terminal: control characters are shown escaped."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import aotair
from aotair.cli import main
from aotair_runtime.errors import AotairError, shown
from aotair_runtime.format import codec
from aotair_runtime.format.schema import Op, Program

HOSTILE = "\x1b]0;title\x07\x1b[2J\r\x08\x9b31m\x7f\u202e\u2066\u2028\nrow  1  2\t3"
OBEYED = re.compile("[^\\n\\t -~\u00a0-\u2027\u2030-\u2065\u2070-\ud7ff\ue000-\U0010ffff]")
INPUTS = {"input": {"shape": ["rows", 4], "dtype": "float32", "pad": 0}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return aotair.build(
        out=tmp_path / "it", model=torch.nn.Linear(4, 2), name="it", inputs=INPUTS, buckets={"rows": [2]}
    )


def rewrite(path: Path, change: Callable[[Program], Program]) -> None:
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    (path / "program.msgpack").write_bytes(codec.dump(change(program)))


def hostile(program: Program) -> Program:
    """With names that a terminal obeys wherever the format lets them be."""
    need = replace(program.requirements, torch_built=HOSTILE)
    constants = tuple(replace(item, names=(*item.names, (HOSTILE + item.name,))) for item in program.constants)
    code = tuple(replace(item, node=HOSTILE) for item in program.instructions)
    (entry,) = program.entry_points
    entry = replace(entry, dims=tuple(replace(dim, name=HOSTILE) for dim in entry.dims))
    entry = replace(entry, constants=((HOSTILE, HOSTILE),))
    return replace(
        program,
        name=HOSTILE,
        requirements=need,
        constants=constants,
        instructions=code,
        entry_points=(entry,),
        unread=(HOSTILE,),
    )


def output(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "inspect": lambda path: ("inspect", path),
    "inspect --weights": lambda path: ("inspect", path, "--weights"),
    "inspect --bucket": lambda path: ("inspect", path, "--bucket", f"{HOSTILE}=2"),
    "inspect of a bucket that is none": lambda path: ("inspect", path, "--bucket", "none"),
    "inspect --json": lambda path: ("inspect", path, "--json"),
    "plan": lambda path: ("plan", path),
    "doctor": lambda path: ("doctor", path),
    "verify": lambda path: ("verify", path),
    "bench": lambda path: ("bench", path, "--seconds", "0"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_hostile_names_escaped(path: Path, name: str):
    rewrite(path, hostile)
    text = output(*COMMANDS[name](path))
    assert not OBEYED.findall(text)
    assert "x1b" in text or "u001b" in text, "the name is not there at all"


@pytest.mark.parametrize("name", ["inspect", "inspect --weights", "plan", "doctor", "verify"])
def test_a_name_cannot_begin_a_line_of_its_own(path: Path, name: str):
    honest = output(*COMMANDS[name](path)).count("\n")
    # What a constant of the entry point or a name that a constant follows from adds is a line in `inspect`, a text in
    # the last column in `inspect --weights`.
    rewrite(path, lambda program: replace(hostile(program), unread=()))
    assert output(*COMMANDS[name](path)).count("\n") - honest in (0, 1 if name == "inspect" else 0)
    assert "\nrow" not in output(*COMMANDS[name](path))


@pytest.mark.parametrize("version", ["", "x", "2.", ".", "-1", "2.9\n", "1" * 10, "9e9"])
def test_a_version_that_is_none_is_refused(path: Path, version: str):
    rewrite(path, lambda program: replace(program, requirements=replace(program.requirements, torch_min=version)))
    with pytest.raises(AotairError):
        aotair.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, requirements=replace(p.requirements, device=HOSTILE * 100)),
        lambda p: replace(p, requirements=replace(p.requirements, torch_min="99" + HOSTILE)),
        lambda p: replace(p, ops=(*p.ops, Op(HOSTILE, HOSTILE))),
        lambda p: replace(p, ops=(replace(p.ops[0], schema=HOSTILE), *p.ops[1:])),
        lambda p: replace(p, constants=(replace(p.constants[0], name=HOSTILE), *p.constants[1:])),
        lambda p: replace(p, alignment=-1, name=HOSTILE),
    ],
)
def test_errors_show_what_an_artifact_says_escaped(path: Path, change: Callable[[Program], Program]):
    rewrite(path, change)
    with pytest.raises(AotairError) as caught:
        aotair.load(path)
    error = caught.value
    assert not OBEYED.findall(f"{error}{error.what}{error.where}{error.expected}{error.got}{error.fix}")
    assert not OBEYED.findall(output("verify", path) + output("doctor", path))


def test_names_of_devices_are_cut(path: Path):
    rewrite(path, lambda p: replace(p, requirements=replace(p.requirements, device="x" * 1_000_000)))
    with pytest.raises(AotairError) as caught:
        aotair.load(path)
    assert len(str(caught.value)) < 1000
    assert len(output("doctor", path)) < 3000


def test_a_path_that_is_obeyed_is_escaped_too(tmp_path: Path):
    assert "\\x1b" in output("inspect", tmp_path / "\x1b[2J") and not OBEYED.findall(
        output("inspect", tmp_path / "\x1b")
    )


def test_a_model_shows_its_names_escaped(path: Path):
    rewrite(path, hostile)
    with aotair.load(path) as model:
        assert not OBEYED.findall(repr(model))


def test_what_is_printed_as_it_is_stays():
    text = "größer\tals\n« x » 数 🙂 \\x1b"
    assert shown(text) == text
    assert str(AotairError("a\nb", got="c")) == "a\nb\n  got: c"
    assert shown("\x1b\ud800") == "\\x1b\\ud800"
    assert len(str(AotairError("x" * 100_000))) < 5000


def test_golden_tensors_that_are_missing_are_an_error_of_every_command(path: Path):
    rewrite(path, lambda p: replace(p, entry_points=tuple(replace(e, name="other") for e in p.entry_points)))
    (path / "debug.msgpack").unlink(missing_ok=True)
    for command in ("verify", "bench", "profile"):
        assert "the golden tensor 'other.0.in.input' is missing" in output(command, path)
