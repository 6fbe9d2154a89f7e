"""Digests of files and of their parts: what was changed anywhere is found, whatever the size."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from nodes import Node

import aotair
from aotair_runtime.artifact import digests
from aotair_runtime.artifact.folder import Folder
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import AlteredError, MalformedError, TruncatedError
from aotair_runtime.format import codec, demands

PART = 4096


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(digests, "PART", PART)
    monkeypatch.setattr(demands, "PART", PART)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7])
def test_each_part_has_the_digest_of_its_bytes(tmp_path: Path, size: int):
    data = bytes(number * 7 % 251 for number in range(size))
    file = tmp_path / "f"
    file.write_bytes(data)
    found = digests.described(file)
    assert (found.nbytes, found.sha256) == (size, hashlib.sha256(data).hexdigest())
    parts = [data[start : start + PART] for start in range(0, size, PART)] if size > PART else []
    assert list(found.parts) == [hashlib.sha256(part).hexdigest() for part in parts]
    digests.check_file(Folder(tmp_path).file("f"), found)
    for place in {0, size // 2, size - 1} if size else ():
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(AlteredError, match="digest"):
            digests.check_file(Folder(tmp_path).file("f"), found)
    file.write_bytes(data + b"x")
    with pytest.raises(TruncatedError, match="another length"):
        digests.check_file(Folder(tmp_path).file("f"), found)


@pytest.mark.usefixtures("small_parts")
def test_an_artifact_of_several_parts_is_written_loaded_and_refused_once_altered(tmp_path: Path):
    path = Node("cpu", tmp_path).path("encoder")
    program = read_program(path)
    assert all(len(file.parts) == -(-file.nbytes // PART) for file in program.files if file.nbytes > PART)
    assert any(file.parts for file in program.files)
    aotair.load(path).close()
    weights = path / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(AlteredError, match=r"weights\.safetensors"):
        aotair.load(path)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("parts", [("0" * 64,), ("",) * 9, ("0" * 64,) * 1000])
def test_a_wrong_number_of_digests_breaks_the_format(tmp_path: Path, parts: tuple[str, ...]):
    path = Node("cpu", tmp_path).path("encoder")
    program = read_program(path)
    changed = replace(program, files=(replace(program.files[0], parts=parts), *program.files[1:]))
    (path / "program.msgpack").write_bytes(codec.dump(changed))
    with pytest.raises(MalformedError, match=r"files\[0\]\.parts"):
        read_program(path)
