"""Files of tensors that people have at hand: read where they are whole, written where there is a place for them."""

from pathlib import Path

import numpy
import pytest
import torch
from click.testing import CliRunner

from aotair.cli import main
from aotair.errors import WriteError
from aotair.tools.tensor_files import describe_tensor, read_tensor_file, write_tensors
from aotair_runtime.artifact.checkpoint import DTYPES
from aotair_runtime.errors import AotairError


def test_broken_files_are_an_error_whatever_is_broken(tmp_path: Path):
    file = tmp_path / "x.npz"
    numpy.savez(file, a=numpy.arange(64.0), b=numpy.ones(3))
    whole = file.read_bytes()
    assert read_tensor_file(file).keys() == {"a", "b"}
    for at in range(0, len(whole), 3):
        file.write_bytes(whole[:at])
        with pytest.raises(AotairError, match="not readable"):
            read_tensor_file(file)
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            read_tensor_file(file)
        except AotairError as error:
            assert "not readable" in str(error)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_folder_that_is_missing_is_an_error(tmp_path: Path, kind: str):
    with pytest.raises(WriteError, match="make the folder first"):
        write_tensors(tmp_path / "missing" / f"x.{kind}", {"a": torch.ones(2)})
    assert list(tmp_path.iterdir()) == []
    write_tensors(tmp_path / f"x.{kind}", {"a": torch.ones(2)})
    assert read_tensor_file(tmp_path / f"x.{kind}")["a"].tolist() == [1.0, 1.0]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_numpy_does_not_know_is_an_error(tmp_path: Path):
    with pytest.raises(AotairError, match=r"write \.safetensors"):
        write_tensors(tmp_path / "x.npz", {"a": torch.ones(2, dtype=torch.bfloat16)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", DTYPES.values(), ids=str)
def test_a_tensor_of_each_dtype_is_described(kind: torch.dtype):
    text = describe_tensor(torch.ones(2, 3).to(kind))
    assert text.startswith(f"{str(kind).removeprefix('torch.')}[2, 3], ") and "begins 1" in text


def test_a_command_says_it_in_one_message(built, tmp_path: Path):
    given = tmp_path / "x.safetensors"
    write_tensors(given, {"x": torch.ones(1, 4)})
    done = CliRunner().invoke(main, ["run", str(built("linear")), str(given), "-o", str(tmp_path / "no" / "y.npz")])
    assert done.exit_code == 1 and "make the folder first" in done.output and not isinstance(done.exception, OSError)
