"""Checkpoints as Hugging Face lays them out: loaded as they are, and refused by name where they are not whole."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cases import RECIPES

from aotair.errors import ModelError
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.checkpoint import open_checkpoint
from aotair_runtime.errors import WeightsError


def sharded(folder: Path, tensors: dict[str, torch.Tensor], most: int = 2) -> Path:
    """A directory with an index and at most so many tensors in a shard."""
    folder.mkdir()
    names = sorted(tensors)
    count = -(-len(names) // most)
    mapped = {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {name: tensors[name] for name in names[number * most : (number + 1) * most]}
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
        mapped |= dict.fromkeys(part, file)
    index(folder, mapped)
    return folder


def index(folder: Path, mapped: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapped}))


def mapping(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def model_of(name: str, weights: Path, **parts: object) -> torch.nn.Module:
    model = RECIPES[name]["model"] | {"weights": str(weights)} | parts
    return load_model(job_of(parse_recipe(RECIPES[name] | {"model": model})))


def state(name: str) -> dict[str, torch.Tensor]:
    tensors = load_model(job_of(parse_recipe(RECIPES[name]))).state_dict()
    return {key: torch.randn_like(tensor) for key, tensor in tensors.items()}


@pytest.mark.parametrize("layout", ["index", "whole", "plain", "file"])
def test_every_layout_is_loaded(tmp_path: Path, layout: str):
    want = state("encoder")
    path = tmp_path / "w"
    if layout == "index":
        sharded(path, want)
    else:
        path.mkdir()
        names = {"whole": "model.safetensors", "plain": "a.safetensors", "file": "x.safetensors"}
        safetensors.torch.save_file(want, path / names[layout])
        if layout == "whole":  # what else lies there is not part of it
            safetensors.torch.save_file({"adapter": torch.ones(1)}, path / "adapter.safetensors")
        path = path / names[layout] if layout == "file" else path
    got = model_of("encoder", path).state_dict()
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)


def test_one_shard_is_open_at_a_time(tmp_path: Path):
    folder = sharded(tmp_path / "w", state("encoder"))
    for number, shard in enumerate(open_checkpoint(folder).shards()):
        mapped = {
            line.split("/")[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line
        }
        assert mapped <= {f"model-{number + 1:05}-of-00006.safetensors"}
        assert len(shard) <= 2
        del shard


def test_tied_weights_may_be_left_out_and_may_not_differ(tmp_path: Path):
    a, c = torch.randn(4, 4), torch.randn(4, 4)
    got = model_of("tied", sharded(tmp_path / "w", {"b.weight": a, "c.weight": c}))
    assert torch.equal(got.a.weight, a) and got.a.weight is got.b.weight and torch.equal(got.c.weight, c)
    model_of("tied", sharded(tmp_path / "x", {"a.weight": a, "b.weight": a.clone(), "c.weight": c}))
    folder = sharded(tmp_path / "y", {"a.weight": a, "b.weight": c, "c.weight": c.clone()})
    with pytest.raises(ModelError, match=r"(?s)ties these tensors.*a.weight, b.weight \(in model-00001"):
        model_of("tied", folder)


def test_a_checkpoint_is_rounded_once_to_the_models_dtype(tmp_path: Path):
    weight = torch.randn(3, 4, dtype=torch.float64)
    folder = sharded(tmp_path / "w", {"linear.weight": weight, "linear.bias": torch.zeros(3, dtype=torch.bfloat16)})
    assert torch.equal(model_of("linear", folder, dtype="float64").linear.weight, weight)
    assert torch.equal(model_of("linear", folder, dtype="bfloat16").linear.weight, weight.to(torch.bfloat16))
    whole = sharded(tmp_path / "x", {"linear.weight": weight.to(torch.int8), "linear.bias": torch.zeros(3)})
    with pytest.raises(ModelError, match=r"linear.weight is int8\[3, 4\] in model-00001-of-00001.safetensors"):
        model_of("linear", whole)


def test_names_and_shapes_that_do_not_fit_are_listed_with_their_shards(tmp_path: Path):
    tensors = state("encoder")
    few = {name: tensor for name, tensor in tensors.items() if not name.startswith(("qkv", "up", "down", "norm"))}
    with pytest.raises(
        ModelError, match=r"missing: qkv.weight, qkv.bias, norm.weight, .*, up.weight, up.bias, down.weight, down.bias"
    ):
        model_of("encoder", sharded(tmp_path / "a", few))
    more = tensors | {f"z{n}": torch.ones(1) for n in range(7)}
    with pytest.raises(ModelError, match=r"z0, z1 \(in model-\d+-of-\d+.safetensors\); .*z6 \(in"):
        model_of("encoder", sharded(tmp_path / "b", more))
    wrong = tensors | {"words.weight": torch.ones(50, 17), "norm.bias": torch.ones(1)}
    with pytest.raises(ModelError, match=r"(?s)words.weight is float32\[50, 17\] in model-.*, not float32\[50, 16\]"):
        model_of("encoder", sharded(tmp_path / "c", wrong))


# ---- hostile directories -------------------------------------------------------------------------------------------


def remap(change):
    def spoil(folder: Path) -> None:
        index(folder, change(mapping(folder)))

    return spoil


def text(content: str):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(content)


def first(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[0]


SPOILT = {
    "a shard above": (
        remap(lambda m: m | {"a": "../x.safetensors"}), "outside of its directory(?s:.*)'../x.safetensors'"
    ),
    "a shard at the root": (remap(lambda m: m | {"a": "/etc/x.safetensors"}), "outside of its directory"),
    "a shard below": (remap(lambda m: m | {"a": "sub/x.safetensors"}), "outside of its directory"),
    "a shard with backslashes": (remap(lambda m: m | {"a": "..\\x.safetensors"}), "outside of its directory"),
    "a shard with a zero byte": (remap(lambda m: m | {"a": "x\0.safetensors"}), "outside of its directory"),
    "a shard that is none": (remap(lambda m: m | {"a": "passwd"}), "outside of its directory"),
    "a missing shard": (lambda f: first(f).unlink(), "shards are missing: model-00001-of-00002"),
    "a shard that nobody has": (remap(lambda m: m | {"a": "no.safetensors"}), "shards are missing: no.safetensors"),
    "no JSON": (text("{"), "cannot be read as JSON"),
    "no text": (lambda f: (f / "model.safetensors.index.json").write_bytes(b"\xff\xfe"), "cannot be read as JSON"),
    "deep JSON": (text("[" * 100_000), "cannot be read as JSON"),
    "a list": (text("[]"), "no weight_map"),
    "an empty map": (remap(lambda m: {}), "no weight_map"),
    "shards that are no names": (remap(lambda m: dict.fromkeys(m, 1)), "no weight_map"),
    "a name twice in the index": (
        text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}'), "names 'a' twice: 'x.safetensors'"
    ),
    "a name in two shards": (
        lambda f: safetensors.torch.save_file(
            safetensors.torch.load_file(first(f)) | {"linear.weight": torch.zeros(3, 4)}, first(f)
        ),
        r"(?s)00001-of-00002.*tensors in two shards: linear.weight \(in model-00002-of-00002",
    ),
    "a name in no shard": (remap(lambda m: m | {"a": m["linear.weight"]}), "(?s)00002-of-00002.*missing: a"),
    "a name that the index lacks": (
        lambda f: safetensors.torch.save_file(
            safetensors.torch.load_file(first(f)) | {"other": torch.zeros(1)}, first(f)
        ),
        "tensors that the index does not put there: other",
    ),
    "a truncated shard": (lambda f: first(f).write_bytes(first(f).read_bytes()[:-1]), "not readable as safetensors"),
    "a shard of zeros": (lambda f: first(f).write_bytes(bytes(64)), "not readable as safetensors"),
    "a whole file beside an index": (
        lambda f: safetensors.torch.save_file({"a": torch.ones(1)}, f / "model.safetensors"),
        "a whole checkpoint beside",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_directory_that_is_not_whole(tmp_path: Path, name: str):
    spoil, says = SPOILT[name]
    folder = sharded(tmp_path / "w", state("linear"), most=1)
    spoil(folder)
    with pytest.raises(WeightsError, match=says):
        open_checkpoint(folder)
    with pytest.raises(ModelError, match=r"model\.weights: "):
        model_of("linear", folder)


def test_plain_files_with_one_name_twice(tmp_path: Path):
    for file in ("a", "b"):
        safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / f"{file}.safetensors")
    with pytest.raises(WeightsError, match=r"(?s)x lies in two files.*a.safetensors and b.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("make", [lambda p: p / "gone", lambda p: p, lambda p: p / "gone.safetensors"])
def test_no_checkpoint_at_all(tmp_path: Path, make):
    with pytest.raises(WeightsError, match="there are no weights here"):
        open_checkpoint(make(tmp_path))


def test_shards_may_be_links_as_a_cache_has_them(tmp_path: Path):
    folder = sharded(tmp_path / "w", state("linear"), most=1)
    blob = first(folder).rename(tmp_path / "blob")
    (folder / "model-00001-of-00002.safetensors").symlink_to(blob)
    assert model_of("linear", folder)
