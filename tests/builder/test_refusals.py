"""What cannot be built: one message with place and remedy, exit status 1, no traceback, nothing left on disk."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from cases import MODELS, RECIPES, recipe
from click.testing import CliRunner

import aotair
from aotair.cli import main
from aotair.errors import ExportError, ModelError, ProofError, RecipeError, UnsupportedError

X = {"x": {"shape": ["n", "s", 4], "dtype": "float32"}}
SIZES = {"n": [1, 2], "s": [4, 8, 16]}


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("branch", ExportError, "depend on the values of a tensor (at models.py:"),
        ("shape", UnsupportedError, "a shape depends on the values of a tensor: aten."),
        ("random", UnsupportedError, "draws random numbers: aten.rand"),
        ("sizes", ExportError, "torch.export found that it needs s = 16"),
        ("write", UnsupportedError, "writes into its input 'x'"),
    ],
)
def test_what_the_model_does(kind: str, error: type, says: str, tmp_path: Path, capfd):
    with pytest.raises(error) as caught:
        aotair.build(recipe("Refused", X, SIZES, kwargs={"kind": kind}), tmp_path / "out.aotair")
    assert says in str(caught.value)
    assert "fix: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"factory": "nowhere.at.all:build"}, "model.factory: cannot import 'nowhere.at.all:build'"),
        ({"factory": f"{MODELS}:Nothing"}, "model.factory: cannot import"),
        ({"factory": "gone.py:build"}, "FileNotFoundError"),
        ({"factory": f"{MODELS}:Refused"}, "missing 1 required positional argument: 'kind'"),
        ({"factory": "builtins:len"}, "model.factory: builtins:len failed"),
        ({"factory": "builtins:dict"}, "returned no model"),
        ({"factory": f"{MODELS}:Linear", "weights": "gone.safetensors"}, "there are no weights here"),
    ],
)
def test_what_the_factory_does(model: dict, says: str, tmp_path: Path):
    with pytest.raises(ModelError, match=None) as caught:
        aotair.build({**RECIPES["linear"], "model": model}, tmp_path / "out.aotair")
    assert says in str(caught.value)


def test_inputs_that_the_model_does_not_take_or_misses(tmp_path: Path):
    rows = RECIPES["linear"]["inputs"]["x"]
    with pytest.raises(ModelError, match=r"inputs\.y: the model does not take this input"):
        aotair.build({**RECIPES["linear"], "inputs": {"x": rows, "y": rows}}, tmp_path / "o")
    with pytest.raises(ModelError, match="the model needs 'mask'"):
        aotair.build({**RECIPES["encoder"], "inputs": {"ids": RECIPES["encoder"]["inputs"]["ids"]}}, tmp_path / "o")


def test_weights_that_do_not_fit(tmp_path: Path):
    weights = tmp_path / "w.safetensors"
    data = {**RECIPES["linear"], "model": {"factory": f"{MODELS}:Linear", "weights": str(weights)}}
    safetensors.torch.save_file({"linear.weight": torch.zeros(3, 4), "other": torch.zeros(1)}, weights)
    with pytest.raises(ModelError, match=r"missing: linear.bias\n.*other"):
        aotair.build(data, tmp_path / "o")
    safetensors.torch.save_file({"linear.weight": torch.zeros(3, 5), "linear.bias": torch.zeros(3)}, weights)
    with pytest.raises(ModelError, match=r"linear.weight is float32\[3, 5\] in w.safetensors, not float32\[3, 4\]"):
        aotair.build(data, tmp_path / "o")
    weights.write_bytes(b"no safetensors")
    with pytest.raises(ModelError, match="not readable as safetensors"):
        aotair.build(data, tmp_path / "o")


def test_weights_from_a_file_or_a_sharded_directory_are_loaded_over(tmp_path: Path):
    shards = tmp_path / "shards"
    shards.mkdir()
    safetensors.torch.save_file({"linear.weight": torch.full((3, 4), 2.0)}, shards / "a.safetensors")
    safetensors.torch.save_file({"linear.bias": torch.full((3,), 1.0)}, shards / "b.safetensors")
    data = {**RECIPES["linear"], "model": {"factory": f"{MODELS}:Linear", "weights": str(shards)}}
    model = aotair.load(aotair.build(data, tmp_path / "o.aotair"))
    assert torch.equal(model(torch.ones(1, 4)), torch.full((1, 3), 9.0))


def test_padding_that_is_not_neutral_names_input_dimension_and_output(tmp_path: Path):
    inputs = {"x": {"shape": ["n", "s", 4], "dtype": "float32", "pad": 0}}
    with pytest.raises(ProofError) as caught:
        aotair.build(recipe("Mean", inputs, SIZES), tmp_path / "out.aotair")
    message = str(caught.value)
    assert "padding the dimension s of the input x changes the outputs" in message
    assert "output (error" in message and "x filled with 0" in message
    assert list(tmp_path.iterdir()) == []


def test_padding_with_anything_is_tried_with_nan(tmp_path: Path):
    inputs = {**RECIPES["encoder"]["inputs"], "mask": {**RECIPES["encoder"]["inputs"]["mask"], "pad": "any"}}
    with pytest.raises(ProofError, match="padding the dimension seq of the input ids, mask changes the outputs"):
        aotair.build({**RECIPES["encoder"], "inputs": inputs}, tmp_path / "out.aotair")


def test_a_wrong_program_is_caught(tmp_path: Path, monkeypatch):
    """The proof is worth something: a lowering that changes numbers stops the build."""
    from aotair.lower import lowerings

    def wrong(build, x, weight, bias=None):
        return build.call(torch.ops.aten.mm.default, x, build.call(torch.ops.aten.t.default, weight))

    monkeypatch.setitem(lowerings.LOWERINGS, torch.ops.aten.linear.default, wrong)
    with pytest.raises(ProofError, match="is not the original model's"):
        aotair.build(RECIPES["linear"], tmp_path / "out.aotair")
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_is_not_an_artifact_is_replaced(tmp_path: Path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    with pytest.raises(RecipeError, match="something else is already there"):
        aotair.build(RECIPES["linear"], tmp_path / "precious")
    assert (tmp_path / "precious" / "file").read_text() == "keep"


def test_an_interrupted_build_leaves_nothing_and_keeps_what_was_there(tmp_path: Path, monkeypatch):
    out = aotair.build(RECIPES["linear"], tmp_path / "out.aotair")
    before = (out / "program.msgpack").read_bytes()

    def interrupt(*_: object, **__: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("aotair.builder.prove", interrupt)
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(RECIPES["linear"]))
    result = CliRunner().invoke(main, ["build", str(file), "-o", str(out)])
    assert result.exit_code == 130
    assert "nothing was written" in result.output
    assert (out / "program.msgpack").read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.aotair", "r.yaml"}


def test_the_command_line_refuses_with_one_message_and_status_1(tmp_path: Path):
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump({**RECIPES["linear"], "nam": 1}))
    result = CliRunner().invoke(main, ["build", str(file), "-o", str(tmp_path / "o.aotair")])
    assert result.exit_code == 1
    assert result.output.startswith(f"error: {file}: nam: unknown key")
    assert "Traceback" not in result.output
    assert not (tmp_path / "o.aotair").exists()
