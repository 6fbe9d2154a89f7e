"""Layers in stages: what each rank has, that the numbers are the whole model's, other weights, and what is refused."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checkpoints
import pytest
import safetensors.torch
import torch
import transformers as tf
from cases import MODELS, RECIPES
from marks import long
from models import Deep, DeepLayer

import aotair
from aotair.builder import build_with_summary
from aotair.errors import ModelError, ProofError
from aotair.model.load import load_model
from aotair.parallel import stages
from aotair.parallel.split import split
from aotair.prove.prove import all_on_host
from aotair.prove.together import AllRanks
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.summary import Listener
from aotair_runtime.artifact import checkpoint
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import WeightsError
from aotair_runtime.format.schema import Axis, Cut, Joined, Shard
from benchmarks.decoder_models import config
from examples.generate import generate

WIDTHS = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}


def asked(mesh: dict[str, int], kwargs: dict[str, object] | None = None, **parallel: str) -> dict:
    model = {"factory": f"{MODELS}:Deep", "kwargs": kwargs or {}}
    return RECIPES["deep"] | {"mesh": mesh, "model": model, "parallel": RECIPES["deep"]["parallel"] | parallel}


def original(recipe: dict) -> torch.nn.Module:
    return load_model(job_of(parse_recipe(recipe | {"mesh": {}, "parallel": "auto"})))


def on_host(path: Path) -> AllRanks:
    found = all_on_host(open_artifact(path), Allowed())
    assert isinstance(found, AllRanks)
    return found


@pytest.mark.parametrize(
    "mesh", [{"pp": 2}, {"pp": 4}, {"dp": 2, "pp": 2}, {"pp": 2, "tp": 2}, {"tp": 2, "pp": 2}], ids=str
)
def test_every_mesh_gives_the_numbers_of_the_whole_model_call_after_call(mesh: dict[str, int], tmp_path: Path):
    recipe = asked(mesh, **(WIDTHS if "tp" in mesh else {}))
    path = aotair.build(recipe, tmp_path / "a.aotair")
    ids, model = torch.randint(24, (2, 4), generator=torch.Generator().manual_seed(3)), original(recipe)
    with on_host(path) as ranks:
        for _ in range(3):
            got = ranks.entry_points["forward"].flat([ids])[0]
            torch.testing.assert_close(got, model(ids), atol=1e-5, rtol=1e-5)
        # What the ranks keep together is what the layers of the whole model keep.
        kept = torch.cat([state for _, state in sorted(ranks.state.items())])
        want = torch.cat([layer.seen for layer in model.layers])
        torch.testing.assert_close(kept[kept[:, 0].argsort()], want[want[:, 0].argsort()], atol=1e-5, rtol=1e-5)


def test_a_rank_has_its_stage_alone_and_a_checkpoint_holds_it_in_pieces(tmp_path: Path):
    path = aotair.build(asked({"pp": 2, "tp": 2}, **WIDTHS), tmp_path / "a.aotair")
    program = read_program(path)
    shards = {constant.name: constant.shard for constant in program.constants}
    assert shards["layers.0+2.norm.weight"] == Shard(0, 0, 2)
    assert shards["layers.1+3.up.weight"] == Shard(0, 0, 2, again=Cut(1, 0, 2))
    assert shards["layers.0+2.down.weight"] == Shard(0, 0, 2, again=Cut(1, 1, 2))
    assert shards["embed.weight"] == Shard(0, 0, 2)
    assert Joined("layers.0+2.up.bias", ("layers.0.up.bias", "layers.2.up.bias")) in program.joined
    assert {state.name for state in program.state} == {"layers.0+2.seen", "layers.1+3.seen"}
    whole = original(asked({"pp": 2}))
    for rank, (stage, half) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        artifact = open_artifact(path, rank)
        tensors = dict(zip((one.name for one in artifact.program.constants), artifact.constants, strict=True))
        want = whole.layers[1 + 2 * stage].down.weight.chunk(2, dim=1)[half]
        assert torch.equal(tensors["layers.1+3.down.weight"], want)


def test_the_weights_file_is_that_of_one_rank(tmp_path: Path):
    sizes = []
    for stages_ in (1, 4):
        path = aotair.build(asked({"pp": stages_}), tmp_path / f"{stages_}.aotair")
        tensors = safetensors.torch.load_file(path / "weights.safetensors").values()
        sizes.append(sum(tensor.nbytes for tensor in tensors))
    a_number_of_each_rank, alike_in_all_layers = 3 * 8, 3 * (2 + 1) * 16 * 4  # norms as they begin, and states
    assert sizes[1] - sizes[0] <= a_number_of_each_rank + alike_in_all_layers


def test_the_whole_models_checkpoint_goes_to_all_stages(tmp_path: Path):
    path = aotair.build(asked({"pp": 2, "tp": 2}, **WIDTHS), tmp_path / "a.aotair")
    torch.manual_seed(9)
    other, ids = Deep(), torch.randint(24, (3, 4))
    safetensors.torch.save_file(dict(other.state_dict()), tmp_path / "other.safetensors")
    with on_host(path) as ranks:
        on_all(ranks, lambda model: model.load_weights(tmp_path / "other.safetensors"))
        got = ranks.entry_points["forward"].flat([ids])[0]
        torch.testing.assert_close(got, other(ids), atol=1e-5, rtol=1e-5)
        lacking = {name: one for name, one in other.state_dict().items() if name != "layers.2.up.bias"}
        safetensors.torch.save_file(lacking, tmp_path / "lacking.safetensors")
        with pytest.raises(WeightsError, match=r"lacks pieces of layers.0\+2.up.bias"):
            on_all(ranks, lambda model: model.load_weights(tmp_path / "lacking.safetensors"))


def test_a_rank_reads_the_pieces_of_its_own_stage_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = aotair.build(asked({"pp": 2}), tmp_path / "a.aotair")
    safetensors.torch.save_file(dict(Deep().state_dict()), tmp_path / "other.safetensors")
    read: dict[int, set[str]] = {0: set(), 1: set()}
    tensor = checkpoint._tensor

    def watched(handle, stored):
        read[int(threading.current_thread().name)].add(stored.name)
        return tensor(handle, stored)

    monkeypatch.setattr(checkpoint, "_tensor", watched)

    def load(model):
        threading.current_thread().name = str(model.artifact.rank)
        model.load_weights(tmp_path / "other.safetensors")

    with on_host(path) as ranks:
        on_all(ranks, load)
    for rank, names in read.items():
        assert {name.split(".")[1] for name in names if name.startswith("layers.")} == {
            str(2 * rank),
            str(2 * rank + 1),
        }


def on_all(ranks: AllRanks, run):
    """On all ranks, which are threads, at the same time."""
    with ThreadPoolExecutor(len(ranks.models)) as threads:
        return list(threads.map(run, ranks.models))


def test_weights_computed_of_parts_are_those_of_each_stage_and_half(tmp_path: Path):
    """A product is folded away before any call: its value differs from rank to rank along both axes."""
    path = aotair.build(asked({"pp": 2, "tp": 2}, {"scaled": True}, **WIDTHS), tmp_path / "a.aotair")
    program = read_program(path)
    derived = {constant.shard for constant in program.constants if constant.kind == "derived"}
    assert Shard(0, 0, 2, again=Cut(1, 0, 2)) in derived
    ids, model = torch.randint(24, (2, 4)), original(asked({"pp": 2}, {"scaled": True}))
    with on_host(path) as ranks:
        torch.testing.assert_close(ranks.entry_points["forward"].flat([ids])[0], model(ids), atol=1e-5, rtol=1e-5)


# ---- layers that are not alike ---------------------------------------------------------------------------------------


def test_layers_that_make_no_stage_stay_whole_on_every_rank(tmp_path: Path):
    recipe = asked({"pp": 2}, {"layers": 6, "odd": 1})
    shared = build_with_summary(recipe, tmp_path / "a.aotair", Listener()).shared_out
    assert shared is not None and shared.styles["stages"] == 4
    assert shared.kept == {f"layers.{n}": "no part of 2 equal stages" for n in (0, 1)}
    ids, model = torch.randint(24, (2, 4)), original(recipe)
    with on_host(tmp_path / "a.aotair") as ranks:
        torch.testing.assert_close(ranks.entry_points["forward"].flat([ids])[0], model(ids), atol=1e-5, rtol=1e-5)


def refused(model: torch.nn.Module, size: int = 2, name: str = "layers") -> str:
    with pytest.raises(ModelError, match="cannot be cut into stages") as caught:
        split(model, (Axis("pp", size),), {name: "stages"}, "here")
    return caught.value.got


def test_what_makes_no_stages_is_refused_with_the_reason():
    assert refused(Deep(), name="head") == "a Linear"
    assert refused(Deep(), 5) == "4 layers"
    assert refused(Deep(2, odd=1)) == "the layers 0 and 1 are made of other modules"
    wide = Deep(2)
    wide.layers[1].up, wide.layers[1].down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
    assert refused(wide) == "the layers 0 and 1 differ in the shape of down.weight"
    eps = Deep(2)
    eps.layers[1].norm.eps = 1e-3
    assert refused(eps) == "the layers 0 and 1 differ in norm.eps"
    swapped = Deep(2)
    swapped.layers[0].number, swapped.layers[1].number = 1, 0
    assert refused(swapped) == "the layers 0 and 1 differ in number"
    table = Deep(2)
    table.layers[0].table, table.layers[1].table = torch.zeros(2), torch.ones(2)
    assert refused(table) == "the layers 0 and 1 differ in table"
    tied = Deep(2)
    tied.layers[1].up.weight = tied.layers[0].up.weight
    assert refused(tied) == "layers.1.up.weight, which is tied to another tensor"
    flag = Deep(2)
    flag.layers[0].wide, flag.layers[1].wide = False, True  # which are no numbers of layers
    assert refused(flag) == "the layers 0 and 1 differ in wide"
    number = Deep(2)
    for layer in number.layers:
        layer.factor = torch.nn.Parameter(torch.tensor(2.0))
    assert refused(number) == "factor, a single number"


def test_a_style_for_one_of_the_stages_alone_is_refused():
    with pytest.raises(ModelError, match="not every stage has weight cut alike"):
        styles = {"layers": "stages", "layers.0.up": "colwise", "layers.0.down": "rowwise"}
        split(Deep(), (Axis("pp", 2), Axis("tp", 2)), styles, "here")


def test_stages_of_a_model_without_layers_are_refused():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
    with pytest.raises(ModelError, match="nothing of the model is shared out"):
        split(model, (Axis("pp", 2),), "auto", "here")
    model._tp_plan = {"a": "colwise_gather_output"}
    with pytest.raises(ModelError, match="has no list of layers"):
        split(model, (Axis("pp", 2),), "auto", "here")


def test_a_sequential_of_one_layer_a_stage(tmp_path: Path):
    """The only layer of a stage is its first and its last; and a Sequential calls its layers itself."""
    model = torch.nn.Sequential(*(DeepLayer(n, 16) for n in range(3)))
    found = split(model.eval(), (Axis("pp", 3),), {"": "stages"}, "here")
    assert [name for name, _ in found.model.named_children()] == ["0+1+2"] and not found.kept
    assert found.stages["0+1+2.up.weight"] == ("0.up.weight", "1.up.weight", "2.up.weight")
    inputs = {"input": {"shape": [2, 16], "dtype": "float32"}}
    parts = {"mesh": {"pp": 3}, "parallel": {"": "stages"}}
    path = aotair.build(model=model, name="alone", out=tmp_path / "a.aotair", inputs=inputs, **parts)
    x = torch.randn(2, 16)
    with on_host(path) as ranks:
        torch.testing.assert_close(ranks.entry_points["forward"].flat([x])[0], model(x), atol=1e-5, rtol=1e-5)


# ---- what the proof catches ------------------------------------------------------------------------------------------

FAULTS = {
    "a stage that hears nobody": (stages._First, "_heard", lambda self, x: x),
    "a stage that hears the last one": (
        stages._First,
        "_heard",
        lambda self, x: torch.ops.air.stage_output(x, self.place.size, self.place.name),
    ),
    "an answer that is each rank's own": (
        stages._Last,
        "forward",
        lambda self, *args, **kwargs: super(stages._Last, self).forward(*args, **kwargs),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_between_stages_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str):
    kind, name, instead = FAULTS[fault]
    monkeypatch.setattr(kind, name, instead)
    with pytest.raises((ProofError, aotair.AotairError)):
        aotair.build(asked({"pp": 2}), tmp_path / "a.aotair")
    assert not list(tmp_path.iterdir())


# ---- language models -------------------------------------------------------------------------------------------------

PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]
TWO = {"num_hidden_layers": 2}
LANGUAGE = {
    "llama": (lambda: config("LlamaConfig", **TWO), {"pp": 2, "tp": 2}, {}),
    "llama, a cache of int8": (lambda: config("LlamaConfig", **TWO), {"pp": 2}, {"quantize": {"kv_cache": "int8"}}),
    "mixtral, experts apart": (
        lambda: config("MixtralConfig", **TWO, num_local_experts=4, num_experts_per_tok=2),
        {"pp": 2},
        {},
    ),
    "lfm2, states": (
        lambda: config("Lfm2Config", num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2),
        {"pp": 2},
        {},
    ),
}


@pytest.mark.parametrize("name", [name if name == "llama" else long(name) for name in LANGUAGE])
def test_tokens_of_a_language_model_and_of_its_next_checkpoint(name: str, tmp_path: Path):
    make, mesh, more = LANGUAGE[name]
    for seed, folder in enumerate(("first", "next")):
        checkpoints.write_checkpoint(tmp_path / folder, checkpoints.seeded(make(), seed=seed))
    recipe = {
        "name": "staged",
        "model": {"pretrained": str(tmp_path / "first"), "kwargs": {"slots": 2, "length": 32}},
        "entry_points": {
            "prefill": {"buckets": {"batch": [2], "seq": [16]}},
            "decode": {"buckets": {"batch": [2]}},
        },
        "mesh": mesh,
        **more,
    }
    path = aotair.build(recipe, tmp_path / "a.aotair")
    program = read_program(path)
    assert not any(re.search(r"layers\.\d+\.", constant.name) for constant in program.constants)
    with on_host(path) as ranks:
        for folder in ("first", "next"):
            model = tf.AutoModelForCausalLM.from_pretrained(tmp_path / folder)
            want = [checkpoints.generated(model, prompt, 8) for prompt in PROMPTS]
            if folder == "next":
                on_all(ranks, lambda one: one.load_weights(tmp_path / "next"))
            for got in on_all(ranks, lambda one: generate(one, PROMPTS, 8)):
                assert got == want or "int8" in name
