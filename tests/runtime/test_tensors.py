"""A safetensors file of an artifact is read strictly: what it says of itself is right, or it is refused."""

import json
import math
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair_runtime.artifact.checkpoint import DTYPES, open_checkpoint
from aotair_runtime.artifact.folder import Folder
from aotair_runtime.artifact.json_file import json_object
from aotair_runtime.artifact.requirements import _at_least, _version
from aotair_runtime.artifact.tensors import mapped, tensors_in
from aotair_runtime.errors import MalformedError, RequirementError, WeightsError

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def read(folder: Path, content: bytes, most: int = 1 << 16, known: set[str] | None = None) -> dict[str, torch.Tensor]:
    (folder / "t.safetensors").write_bytes(content)
    return tensors_in(mapped(Folder(folder).file("t.safetensors")), "here", most, known)


def file_of(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def test_what_safetensors_writes_is_read_bit_for_bit(tmp_path: Path):
    tensors = {str(kind): torch.arange(6).to(torch.uint8).view(2, 3).to(kind) for kind in DTYPES.values()}
    tensors |= {"none": torch.empty(0, 3), "one": torch.tensor(2.5), "ü": torch.ones(1, dtype=torch.float64)}
    safetensors.torch.save_file(tensors, tmp_path / "w")
    found = read(tmp_path, (tmp_path / "w").read_bytes())
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].numpy(force=True).tobytes() == tensor.numpy().tobytes() if tensor.dtype in PLAIN else True


PLAIN = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)

WRONG = {
    "nothing at all": (b"\0" * 3, "header is longer"),
    "a header longer than the file": (b"\xff" * 8 + b"{}", "header is longer than the file"),
    "a header that is no JSON": (file_of(b"{]", b""), "not readable"),
    "a header that is no text": (file_of(b"\xff\xfe", b""), "not readable"),
    "a header that is a list": (file_of([], b""), "no object"),
    "a header that nests": (file_of(b"[" * 60_000, b""), "not readable"),
    "a number of 5,000 digits": (file_of(b'{"a": ' + b"1" * 5000 + b"}", b""), "not readable"),
    "a tensor twice": (file_of(b'{"a": %b, "a": %b}' % ((json.dumps(F32).encode(),) * 2), b"\0" * 8), "not readable"),
    "metadata": (file_of({"__metadata__": {"format": "pt"}, "a": F32}, b"\0" * 8), "needs dtype, shape"),
    "a field too many": (file_of({"a": F32 | {"more": 1}}, b"\0" * 8), "needs dtype, shape"),
    "a field too few": (file_of({"a": {"dtype": "F32"}}, b"\0" * 8), "needs dtype, shape"),
    "a dtype that is none": (file_of({"a": F32 | {"dtype": "load"}}, b"\0" * 8), "dtype that torch does not have"),
    "a dtype that is a list": (file_of({"a": F32 | {"dtype": []}}, b"\0" * 8), "dtype that torch does not have"),
    "a shape of text": (file_of({"a": F32 | {"shape": "2"}}, b"\0" * 8), "possible sizes"),
    "a shape of True": (file_of({"a": F32 | {"shape": [True, 2]}}, b"\0" * 8), "possible sizes"),
    "a shape of 2.0": (file_of({"a": F32 | {"shape": [2.0]}}, b"\0" * 8), "possible sizes"),
    "a negative size": (file_of({"a": F32 | {"shape": [-1, -2]}}, b"\0" * 8), "possible sizes"),
    "too many sizes": (file_of({"a": F32 | {"shape": [1] * 65 + [2]}}, b"\0" * 8), "possible sizes"),
    "a size of 4,000 digits": (file_of({"a": F32 | {"shape": [10**4000]}}, b"\0" * 8), "possible sizes"),
    "one offset": (file_of({"a": F32 | {"data_offsets": [8]}}, b"\0" * 8), "possible sizes"),
    "offsets backwards": (file_of({"a": F32 | {"data_offsets": [8, 0]}}, b"\0" * 8), "another number of bytes"),
    "offsets beyond the file": (file_of({"a": F32 | {"data_offsets": [8, 16]}}, b"\0" * 8), "between two tensors"),
    "fewer bytes than the shape": (file_of({"a": F32 | {"shape": [3]}}, b"\0" * 8), "another number of bytes"),
    "bytes at the end": (file_of({"a": F32}, b"\0" * 9), "to the end of the file"),
    "bytes missing at the end": (file_of({"a": F32}, b"\0" * 7), "to the end of the file"),
    "two tensors in one place": (file_of({"a": F32, "b": F32}, b"\0" * 8), "between two tensors, or in both"),
    "bytes between two": (
        file_of({"a": F32, "b": F32 | {"data_offsets": [12, 20]}}, b"\0" * 20), "between two tensors"),
    "an odd address": (file_of({"a": F32}, b"\0" * 8).replace(b" ", b"", 1), "address|not readable|end of"),
    "an odd offset": (
        file_of({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": F32 | {"data_offsets": [1, 9]}},
                b"\0" * 9), "address that its dtype cannot have"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_whatever_is_wrong_is_refused(tmp_path: Path, name: str):
    content, what = WRONG[name]
    with pytest.raises(MalformedError, match=what) as caught:
        read(tmp_path, content)
    assert caught.value.where == "here" and len(str(caught.value)) < 500


def test_an_odd_header_is_an_odd_address(tmp_path: Path):
    text = json.dumps({"a": F32}).encode()
    text += b" " * (1 + -len(text) % 8)
    with pytest.raises(MalformedError, match="address"):
        read(tmp_path, len(text).to_bytes(8, "little") + text + b"\0" * 8)


def test_a_million_tensors_are_refused_before_they_are_parsed(tmp_path: Path):
    entry = b'"%d": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    content = file_of(b"{" + b",".join(entry % number for number in range(1_000_000)) + b"}", b"")
    began = time.perf_counter()
    with pytest.raises(MalformedError, match="longer than the program's tensors need"):
        read(tmp_path, content)
    assert time.perf_counter() - began < 5


def test_names_that_the_program_does_not_have_are_refused_and_shown_short(tmp_path: Path):
    for name in ("b", "n" * 100_000, "\x1b[2J"):
        with pytest.raises(MalformedError, match="does not know") as caught:
            read(tmp_path, file_of({name: F32}, b"\0" * 8), 1 << 20, {"a"})
        assert len(str(caught.value)) < 300 and "\x1b" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_give_tensors_within_the_file_or_an_error_of_ours(tmp_path_factory, changes):
    content = bytearray(file_of({"a": F32, "b": {"dtype": "I64", "shape": [1, 2], "data_offsets": [8, 24]}}, bytes(24)))
    for at, value in changes:
        content[at % len(content)] = value
    try:
        found = read(tmp_path_factory.getbasetemp(), bytes(content))
    except MalformedError:
        return
    assert sum(tensor.nbytes for tensor in found.values()) == 24
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in found.values())
    assert all(math.isfinite(tensor.sum().item()) or True for tensor in found.values())


# ---- other files that somebody else wrote ----------------------------------------------------------------------------


def test_a_checkpoint_that_changes_while_it_is_read(tmp_path: Path):
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"a": torch.ones(2)}, file)
    for other in ({"a": torch.ones(1)}, {"b": torch.ones(2)}, {"a": torch.zeros(2)}):
        found = open_checkpoint(file)
        assert found.tensor("a").shape == (2,)
        safetensors.torch.save_file(other, tmp_path / "new")
        (tmp_path / "new").rename(file)
        with pytest.raises(WeightsError, match="changed while it was read"):
            found.tensor("a")
        with pytest.raises(WeightsError, match="changed while it was read"):
            list(found.shards())
        safetensors.torch.save_file({"a": torch.ones(2)}, file)


def test_json_files_of_any_kind(tmp_path: Path):
    file = tmp_path / "f.json"
    for content in (b"[" * 100_000, b"\xff", b"[]", b"1" * 5000, b'{"a": "' + b"x" * 2000 + b'"}'):
        file.write_bytes(content)
        with pytest.raises(ValueError):
            json_object(file, 1000 if b"x" in content else 1 << 20)
    file.unlink()
    import os

    os.mkfifo(file)
    with pytest.raises(ValueError, match="no regular file"):
        json_object(file, 1000)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13)), ("2.9", (2, 9)), ("2.9.1rc1", (2, 9, 1)), ("2.²", (2,)), ("", ()), ("x", ())],
)
def test_versions_of_any_kind(text: str, numbers: tuple[int, ...]):
    assert _version(text) == numbers


def test_a_version_of_5000_digits_is_a_newer_one():
    assert _version("9" * 5000) > _version("2.13")


def test_what_an_artifact_demands_is_shown_short_and_without_what_a_terminal_obeys():
    with pytest.raises(RequirementError) as caught:
        _at_least("torch", "2.13", "9\x1b[2J" + "9" * 5000, "here")
    assert len(str(caught.value)) < 300 and "\x1b" not in str(caught.value)
