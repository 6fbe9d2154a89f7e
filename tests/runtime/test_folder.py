"""An artifact's files are opened once: what was checked is used, and what is no file of its own is refused."""

import gc
import os
import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import aotair
from aotair_runtime.artifact.companions import read_companion
from aotair_runtime.artifact.digests import digest
from aotair_runtime.artifact.folder import Folder
from aotair_runtime.artifact.open import open_artifact, opened, read_golden, read_program, with_weights
from aotair_runtime.errors import (
    AlteredError,
    ArtifactError,
    MalformedError,
    NotAnArtifactError,
    TruncatedError,
    UnreadableError,
)
from aotair_runtime.format import codec
from aotair_runtime.format.schema import Program

FILES = ("program.msgpack", "weights.safetensors", "golden.safetensors")


def rewrite(path: Path, change: Callable[[Program], Program]) -> None:
    """Change the program and give it a right digest again, as an attacker would."""
    program = codec.parse((path / "program.msgpack").read_bytes(), "x")
    (path / "program.msgpack").write_bytes(codec.dump(change(program)))


INPUTS = {"input": {"shape": [1, 4], "dtype": "float32"}}


def made(path: Path, value: float) -> Path:
    model = torch.nn.Linear(4, 2)
    torch.nn.init.constant_(model.weight, value)
    (path.parent / "labels.txt").write_text(f"{value}")
    return aotair.build(out=path, model=model, name="a", inputs=INPUTS, files=[str(path.parent / "labels.txt")])


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("two")
    return made(folder / "one", 1.0), made(folder / "two", 2.0)


@pytest.fixture
def copy(two, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two[0], tmp_path / "a.aotair"))


# ---- what is opened --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_linked_file_is_refused_by_name(copy: Path, tmp_path: Path, name: str):
    (copy / name).rename(tmp_path / "elsewhere")
    (copy / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MalformedError, match=f"{name}: no regular file.*links are not followed") as caught:
        aotair.load(copy)
    assert caught.value.got == "a link" and "cp -L" in caught.value.fix


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(copy: Path, name: str, make):
    (copy / name).unlink()
    make(copy / name)
    with pytest.raises(MalformedError, match=name):
        aotair.load(copy)


def test_a_linked_folder_of_companions_is_refused(copy: Path, tmp_path: Path):
    program = read_program(copy)
    assert read_companion(copy, program, "labels.txt") == b"1.0"
    (copy / "files").rename(tmp_path / "files")
    (copy / "files").symlink_to(tmp_path / "files")
    with pytest.raises(MalformedError, match="files"):
        read_companion(copy, program, "labels.txt")


def test_the_artifact_itself_may_be_behind_a_link(copy: Path, tmp_path: Path):
    (tmp_path / "current").symlink_to(copy.name)
    aotair.load(tmp_path / "current").close()


def test_an_exchange_between_program_and_weights_is_not_seen(two, tmp_path: Path):
    one, other = (Path(shutil.copytree(path, tmp_path / path.name)) for path in two)
    folder, program = opened(one)
    one.rename(tmp_path / "old")
    other.rename(one)
    shutil.rmtree(tmp_path / "old")
    artifact = with_weights(folder, program)
    weight = next(t for c, t in zip(program.constants, artifact.constants) if c.name == "weight")
    assert weight.unique().tolist() == [1.0]
    assert read_golden(artifact), "they were open too"


def test_a_model_keeps_the_golden_tensors_of_what_it_was_loaded_from(two, tmp_path: Path):
    one = Path(shutil.copytree(two[0], tmp_path / "served"))
    model = aotair.load(one)
    shutil.rmtree(one)
    shutil.copytree(two[1], one)
    model.load_weights(one)
    model.load_weights(two[0])
    with pytest.raises(ArtifactError):
        (one / "weights.safetensors").unlink()
        model.load_weights(one)


def test_a_load_leaves_no_file_open(copy: Path):
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    aotair.load(copy).close()
    before = descriptors()
    for _ in range(30):
        aotair.load(copy).close()
        aotair.load(copy, private=True)
    (copy / "weights.safetensors").write_bytes(b"")
    for _ in range(30):
        with pytest.raises(TruncatedError):
            aotair.load(copy)
    assert descriptors() == before


# ---- what the system refuses -----------------------------------------------------------------------------------------


def test_a_process_that_may_open_no_more_files_gets_one_error(copy: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    aotair.load(copy).close()
    held, told = [], set()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, hard))
        while True:
            try:
                held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for _ in range(10):  # each with one more that can be opened
            try:
                aotair.load(copy).close()
            except UnreadableError as error:
                told.add(str(error))
            os.close(held.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
    assert len(told) >= 3 and all("Too many open files" in text and "ulimit -n" in text for text in told), told


@pytest.mark.parametrize("name", FILES)
def test_files_that_nobody_may_read(copy: Path, name: str, monkeypatch):
    real = os.open

    def refuse(path, *args, **kwargs):
        if path == name:
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableError, match=f"{name}: .*Permission denied"):
        aotair.load(copy)


def test_paths_that_are_none(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    for path in (
        tmp_path / "no",
        tmp_path / "file",
        tmp_path / "file" / "a",
        tmp_path / "a\0b",
        tmp_path / ("n" * 300),
    ):
        with pytest.raises(ArtifactError):
            aotair.load(path)
    with pytest.raises(NotAnArtifactError):
        aotair.load(tmp_path / "file")


# ---- what is large ---------------------------------------------------------------------------------------------------


def sparse(file: Path, nbytes: int) -> None:
    with file.open("r+b") as stream:
        stream.truncate(nbytes)


def test_a_program_of_4_gb_is_refused_by_its_length(copy: Path):
    sparse(copy / "program.msgpack", 4 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MalformedError, match="longer than any that is read whole"):
        aotair.load(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_weights_of_a_terabyte_are_refused_before_they_are_read(copy: Path):
    sparse(copy / "weights.safetensors", 1 << 40)
    rewrite(copy, lambda p: replace(p, files=(replace(p.files[0], nbytes=1 << 40), *p.files[1:])))
    with pytest.raises(MalformedError, match="longer than the program's constants are"):
        aotair.load(copy)


def test_a_companion_that_is_too_long_to_be_read_whole(copy: Path):
    sparse(copy / "files" / "labels.txt", 1 << 40)
    rewrite(
        copy, lambda p: replace(p, files=tuple(replace(f, nbytes=1 << 40) if "/" in f.name else f for f in p.files))
    )
    with pytest.raises(MalformedError, match="longer than any that is read whole"):
        read_companion(copy, read_program(copy), "labels.txt")


@pytest.mark.parametrize("names", [("weights.safetensors",) * 2, ("weights.safetensors", "n" * 100_000)])
def test_files_listed_twice_and_names_of_any_length(copy: Path, names: tuple[str, ...]):
    rewrite(copy, lambda p: replace(p, files=tuple(replace(p.files[0], name=name) for name in names)))
    with pytest.raises(MalformedError, match=r"program\.files") as caught:
        aotair.load(copy)
    assert len(str(caught.value)) < 1000


# ---- what becomes of the file under a model --------------------------------------------------------------------------


def written_over(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(b"\1\2\3\4")


def with_its_time_put_back(file: Path) -> None:
    before = file.stat()
    written_over(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (written_over, AlteredError),
        (with_its_time_put_back, AlteredError),
        (lambda file: os.truncate(file, 100), TruncatedError),
        (lambda file: os.truncate(file, 0), TruncatedError),
        (lambda file: os.truncate(file, 1 << 20), TruncatedError),
    ],
)
def test_mapped_weights_that_were_changed_or_cut_are_an_error_at_the_next_reload(copy: Path, two, change, error: type):
    model = aotair.load(copy)
    aside = aotair.load(copy, private=True)
    x = torch.ones(1, 4)
    answer = aside(x).clone()
    change(copy / "weights.safetensors")
    with pytest.raises(error, match=r"weights\.safetensors") as caught:
        model.load_weights(two[1])
    assert caught.value.fix
    assert torch.equal(aside(x), answer)
    aside.load_weights(two[1])


def test_a_file_that_was_only_touched_linked_or_removed_is_as_it_was(copy: Path, two):
    model = aotair.load(copy)
    file = copy / "weights.safetensors"
    file.chmod(0o600)
    model.load_weights(two[1])
    os.link(file, copy.parent / "another")
    model.load_weights(two[0])
    file.unlink()
    model.load_weights(two[1])
    assert (copy.parent / "another").read_bytes() == (two[0] / "weights.safetensors").read_bytes()


def test_private_weights_lie_in_no_file(copy: Path):
    lines = Path("/proc/self/maps").read_text
    with aotair.load(copy, private=True) as model:
        assert str(copy) not in lines()
        mapped = aotair.load(copy)
        assert torch.equal(model(torch.ones(1, 4)), mapped(torch.ones(1, 4)))
        assert str(copy) in lines()


def test_each_weight_has_a_storage_of_its_own_that_cannot_grow(copy: Path):
    for tensor in open_artifact(copy).constants:
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        with pytest.raises(RuntimeError):
            tensor.untyped_storage().resize_(1 << 20)


# ---- how much is looked at -------------------------------------------------------------------------------------------

PART = 4096


@pytest.fixture
def large(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr("aotair_runtime.artifact.digests.PART", PART)
    monkeypatch.setattr("aotair_runtime.format.demands.PART", PART)
    model = torch.nn.Linear(1024, 16)
    return aotair.build(out=tmp_path / "large", model=model, name="a", inputs={"input": torch.ones(1, 1024)})


def spoil(file: Path, part: int) -> None:
    data = bytearray(file.read_bytes())
    data[part * PART + PART // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("full", ["full", True])
def test_in_full_every_part_is_looked_at(large: Path, full):
    spoil(large / "weights.safetensors", 7)
    with pytest.raises(AlteredError):
        aotair.load(large, verify_weights=full)


def test_a_sample_looks_at_the_header_and_at_parts_by_chance(large: Path, caplog):
    with caplog.at_level("INFO", "aotair.runtime"):
        aotair.load(large, verify_weights="sampled").close()
    looked = int(re.search(r"(\d+) of \d+ bytes of weights .*\(sampled\) in .* GB/s", caplog.text)[1])
    assert 2 * PART < looked <= 3 * PART  # the first, and two of the sixteen others
    spoil(large / "weights.safetensors", 7)
    found = 0
    for _ in range(100):
        try:
            aotair.load(large, verify_weights="sampled").close()
        except AlteredError:
            found += 1
    assert 0 < found < 60  # of sixteen parts two are looked at
    spoil(large / "weights.safetensors", 7)
    spoil(large / "weights.safetensors", 0)
    with pytest.raises(AlteredError):
        aotair.load(large, verify_weights="sampled")


@pytest.mark.parametrize("none", ["length", False])
def test_without_digests_length_and_header_are_still_checked(large: Path, none):
    file = large / "weights.safetensors"
    spoil(file, 7)
    aotair.load(large, verify_weights=none).close()
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(TruncatedError):
        aotair.load(large, verify_weights=none)
    file.write_bytes(b"\xff" * 8 + data[8:])
    with pytest.raises(MalformedError):
        aotair.load(large, verify_weights=none)


@pytest.mark.parametrize(
    "options", [{"verify_weights": "some"}, {"verify_weights": 1}, {"verify_weights": None}, {"private": 1}]
)
def test_other_words_are_refused(copy: Path, options: dict):
    with pytest.raises(aotair.AotairError, match=f"{next(iter(options))}= is wrong"):
        aotair.load(copy, **options)


def test_the_digest_of_a_file_is_that_of_its_bytes(copy: Path):
    assert digest(copy / "weights.safetensors") == read_program(copy).files[0].sha256
    file = Folder(copy).file("weights.safetensors")
    assert file.content(1 << 20) == (copy / "weights.safetensors").read_bytes()
