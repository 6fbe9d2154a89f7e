"""From a checkpoint on disk to tokens, without a line of Python by the user; and what is refused, by name."""

import json
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import safetensors.torch
import torch
import transformers as tf
import yaml
from click.testing import CliRunner

import aotair
from aotair.chat.generate import Generator
from aotair.chat.sampling import Sampler, Sampling
from aotair.cli import main
from aotair.errors import ModelError, RecipeError, UnsupportedError
from aotair.export import entries
from aotair.hf.scaffold import recipe_of
from aotair.prove import prove
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.companions import companion, companions
from examples.generate import generate

PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]


def test_an_artifact_of_a_checkpoint_gives_the_tokens_of_transformers(checkpoint: Path, artifact: Path):
    model = tf.AutoModelForCausalLM.from_pretrained(checkpoint)
    want = [checkpoints.generated(model, prompt, 20) for prompt in PROMPTS]
    with aotair.load(artifact, enable_output_clone=True) as served:
        assert generate(served, PROMPTS, 20) == want


@pytest.mark.long
@pytest.mark.parametrize("cache", [{"slots": 2}, {"cache": "paged", "blocks": 8, "block": 16}])
def test_it_builds_for_cuda_where_no_gpu_is(checkpoint: Path, tmp_path: Path, cache: dict[str, Any]):
    recipe = {
        "name": "tiny",
        "model": {"pretrained": str(checkpoint), "dtype": "bfloat16", "kwargs": {"length": 64, **cache}},
        "entry_points": {
            "prefill": {"buckets": {"batch": [1], "seq": [8]}},
            "decode": {"buckets": {"batch": [2]}},
            "verify": {"buckets": {"batch": [1], "seq": [4]}},
        },
        "target": {"device": "cuda"},
    }
    path = aotair.build(recipe, tmp_path / "tiny.aotair")
    with aotair.load(path, device="cpu") as served:  # its programs run on the host too
        assert served.program.requirements.device == "cuda"
        assert set(served.entry_points) == {"prefill", "decode", "verify"}


def test_what_belongs_to_the_model_travels_with_it(checkpoint: Path, artifact: Path):
    with aotair.load(artifact) as served:
        names = set(companions(served.program))
        assert names >= {"tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"}
        for name in names:
            assert companion(artifact, served.program, name).read_bytes() == (checkpoint / name).read_bytes()


def test_the_next_checkpoint_is_loaded_under_its_own_names(artifact: Path, tmp_path: Path):
    successor = checkpoints.seeded(checkpoints.llama(), seed=7)
    checkpoints.write_checkpoint(tmp_path / "next", successor)
    with aotair.load(artifact, enable_output_clone=True) as served:
        served.load_weights(tmp_path / "next")
        assert generate(served, PROMPTS, 20) == [checkpoints.generated(successor, prompt, 20) for prompt in PROMPTS]


def test_init_writes_a_recipe_that_builds_as_it_stands(checkpoint: Path, tmp_path: Path):
    file = tmp_path / "recipe.yaml"
    result = CliRunner().invoke(main, ["init", str(checkpoint), "-o", str(file)])
    assert result.exit_code == 0, result.output
    written = yaml.safe_load(file.read_text())
    assert written["model"]["task"] == "text-generation" and set(written["entry_points"]) == {"prefill", "decode"}
    built = CliRunner().invoke(
        main,
        [
            "build",
            str(file),
            "-o",
            str(tmp_path / "out"),
            "--set",
            "entry_points.prefill.buckets={batch: [1], seq: [8]}",
        ],
    )
    assert built.exit_code == 0, built.output


@pytest.mark.long
def test_several_processes_make_the_same_artifact(artifact: Path, checkpoint: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(entries, "_WORTH", 0)
    monkeypatch.setattr(prove, "_WORTH", 0.0)
    buckets = {"prefill": {"batch": [1, 2], "seq": [8, 32]}, "decode": {"batch": [1, 2]}}
    recipe = {
        "name": "tiny",
        "model": {"pretrained": str(checkpoint), "kwargs": {"slots": 2, "length": 64}},
        "entry_points": {name: {"buckets": sizes} for name, sizes in buckets.items()},
    }
    shared = aotair.build(recipe, tmp_path / "tiny.aotair", jobs=2)
    for name in ("program.msgpack", "weights.safetensors", "golden.safetensors"):
        assert (shared / name).read_bytes() == (artifact / name).read_bytes()


@pytest.mark.long
def test_every_method_of_the_task_can_be_an_entry_point(checkpoint: Path, tmp_path: Path):
    methods = ("prefill", "decode", "extend", "verify")
    data = {
        "name": "four",
        "model": {"pretrained": str(checkpoint), "kwargs": {"slots": 2, "length": 32}},
        "entry_points": {
            name: {"buckets": {"batch": [1]} | ({} if name == "decode" else {"seq": [8]})} for name in methods
        },
    }
    model = tf.AutoModelForCausalLM.from_pretrained(checkpoint)
    ids = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        want = model(input_ids=ids).logits[0]
    with aotair.load(aotair.build(data, tmp_path / "four"), enable_output_clone=True) as served:
        slot, ones = torch.tensor([1]), torch.ones_like(ids)
        served.prefill(ids[:, :4], ones[:, :4], slot)
        every = served.verify(ids[:, 4:], ones[:, 4:], torch.tensor([4]), slot)
        last = served.extend(ids[:, 4:], ones[:, 4:], torch.tensor([4]), slot)
    torch.testing.assert_close(every[0], want[4:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(last[0], want[-1], atol=1e-4, rtol=1e-4)


def test_a_paged_cache_serves_sequences_from_any_blocks(checkpoint: Path, tmp_path: Path):
    options = {"cache": "paged", "length": 64, "block": 8, "blocks": 16}  # two whole sequences, and batches of two
    model = {"pretrained": str(checkpoint), "kwargs": options}
    buckets = {"prefill": {"buckets": {"batch": [2], "seq": [16]}}, "decode": {"buckets": {"batch": [1, 2, 4]}}}
    original = tf.AutoModelForCausalLM.from_pretrained(checkpoint)
    table = torch.tensor([[7, 0, 13, 2, 16, 16, 16, 16], [1, 15, 4, 9, 16, 16, 16, 16]])
    with aotair.load(
        aotair.build({"name": "paged", "model": model, "entry_points": buckets}, tmp_path / "paged"),
        enable_output_clone=True,
    ) as served:
        ops = {op.name for op in served.program.ops}
        assert "air::paged_attention.out" in ops
        ids = torch.zeros(2, 9, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(PROMPTS):
            ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
        tokens, found = served.prefill(ids, mask, table).argmax(-1), []
        for step in range(20):
            found.append(tokens)
            positions = torch.tensor([len(prompt) + step for prompt in PROMPTS])
            tokens = served.decode(tokens, positions, table).argmax(-1)
        alone = list(Generator(served).tokens(PROMPTS[1], Sampler(Sampling()), frozenset(), 20))
    want = [checkpoints.generated(original, prompt, 20) for prompt in PROMPTS]
    assert torch.stack(found, 1).tolist() == want and alone == want[1]


# ---- what a recipe says wrongly ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, said",
    [
        ({"pretrained": "nowhere"}, "this is no checkpoint"),
        ({"pretrained": "@", "task": "translation"}, "there is no such task"),
        ({"pretrained": "@", "kwargs": {"slot": 2}}, "has no such option"),
        ({"pretrained": "@", "kwargs": {"slots": 0}}, "model.kwargs.slots: not possible"),
        ({"pretrained": "@", "kwargs": {"length": 129}}, "model.kwargs.length: not possible"),
        ({"pretrained": "@", "kwargs": {"cache": "lru"}}, "model.kwargs.cache: not possible"),
        ({"pretrained": "@", "kwargs": {"cache": "paged", "block": 7}}, "model.kwargs.block: not possible"),
        ({"pretrained": "@", "kwargs": {"cache": "paged", "blocks": 3}}, "model.kwargs.blocks: not possible"),
        ({"pretrained": "@", "kwargs": {"length": 4}}, "(?s)model.kwargs.length: not possible.*from 5 to"),
        ({"pretrained": "@", "kwargs": {"length": True}}, "model.kwargs.length: not possible"),
    ],
)
def test_a_recipe_that_asks_for_what_is_not_there_is_refused(checkpoint: Path, model: dict[str, Any], said: str):
    model = {**model, "pretrained": model["pretrained"].replace("@", str(checkpoint))}
    with pytest.raises(ModelError, match=said):
        parse_recipe({"name": "wrong", "model": model})


def test_an_encoder_with_a_decoder_is_refused_before_a_recipe_is_written(tmp_path: Path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 256}
    config = tf.BartConfig(**sizes, architectures=["BartForConditionalGeneration"])
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="the checkpoint is for something else"):
        recipe_of(tmp_path)


def test_a_recipe_says_where_the_checkpoint_is_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tf.XLNetConfig(vocab_size=256, architectures=["XLNetLMHeadModel"]).save_pretrained(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert "pretrained: here" in recipe_of(Path("here"))
    assert "pretrained: ../here" in recipe_of(Path("here"), folder=Path("recipes"))
    assert f"pretrained: {tmp_path / 'here'}" in recipe_of(tmp_path / "here", folder=Path("recipes"))


def test_an_architecture_without_a_greatest_position_has_a_cache_of_any_length(tmp_path: Path):
    tf.XLNetConfig(vocab_size=256, architectures=["XLNetLMHeadModel"]).save_pretrained(tmp_path)
    assert "length: 1024" in recipe_of(tmp_path)


def test_a_factory_and_a_checkpoint_exclude_each_other(checkpoint: Path):
    with pytest.raises(RecipeError, match="a factory and a checkpoint are given"):
        parse_recipe({"name": "two", "model": {"pretrained": str(checkpoint), "factory": "a:b"}})


def test_an_entry_point_that_the_task_does_not_have_is_refused(checkpoint: Path):
    with pytest.raises(RecipeError, match="no such method"):
        parse_recipe({"name": "x", "model": {"pretrained": str(checkpoint)}, "entry_points": {"train": {}}})


def test_inputs_that_the_recipe_describes_itself_stay(checkpoint: Path):
    own = {"shape": ["batch"], "dtype": "int64", "range": [0, 7], "pad": 0}
    data = {
        "name": "x",
        "model": {"pretrained": str(checkpoint)},
        "entry_points": {"decode": {"inputs": {"positions": own}}},
    }
    entry = parse_recipe(data).entry_points["decode"]
    assert entry.inputs["positions"].range == [0, 7] and set(entry.inputs) == {"input_ids", "positions", "slots"}


# ---- checkpoints that are broken -----------------------------------------------------------------------------------


@pytest.fixture
def broken(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy, to be broken."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def refused(folder: Path, out: Path, match: str, **model: Any) -> None:
    """The build is refused with that text, and leaves nothing behind."""
    with pytest.raises(ModelError, match=match):
        aotair.build({"name": "broken", "model": {"pretrained": str(folder), **model}}, out)
    assert not out.exists() and not list(out.parent.glob(f".{out.name}*"))


def changed_config(folder: Path, **changes: Any) -> None:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **changes}))


def test_without_its_configuration(broken: Path, tmp_path: Path):
    (broken / "config.json").unlink()
    refused(broken, tmp_path / "out", "this is no checkpoint")


def test_with_a_configuration_that_is_no_json(broken: Path, tmp_path: Path):
    (broken / "config.json").write_text("{")
    refused(broken, tmp_path / "out", "config.json cannot be read")


def test_of_an_architecture_that_nobody_knows(broken: Path, tmp_path: Path):
    changed_config(broken, model_type="martian")
    refused(broken, tmp_path / "out", "configuration cannot be read")


def test_of_an_architecture_that_is_code_in_the_checkpoint(broken: Path, tmp_path: Path):
    changed_config(broken, model_type="martian", auto_map={"AutoModelForCausalLM": "code.Martian"})
    (broken / "code.py").write_text("raise SystemExit('this was run')")
    refused(broken, tmp_path / "out", "is code in the checkpoint, which is not run")


def test_with_more_layers_than_weights(broken: Path, tmp_path: Path):
    changed_config(broken, num_hidden_layers=3, layer_types=None)
    refused(broken, tmp_path / "out", "the weights are not those of LlamaForCausalLM")


def test_with_weights_of_another_width(broken: Path, tmp_path: Path):
    changed_config(broken, intermediate_size=256)
    refused(broken, tmp_path / "out", "LlamaForCausalLM|cannot load")


def test_with_a_shard_that_was_cut(broken: Path, tmp_path: Path):
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    refused(broken, tmp_path / "out", "not readable as safetensors")


def test_with_weights_that_are_pickles(broken: Path, tmp_path: Path):
    torch.save(safetensors.torch.load_file(broken / "model.safetensors"), broken / "pytorch_model.bin")
    (broken / "model.safetensors").unlink()
    refused(broken, tmp_path / "out", "the weights are pickles")


def test_quantised_in_a_way_of_others(broken: Path, tmp_path: Path):
    changed_config(broken, quantization_config={"quant_method": "martian"})
    refused(broken, tmp_path / "out", "quant_method is not served")


def test_of_a_model_that_does_not_generate(tmp_path: Path):
    config = tf.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    checkpoints.write_checkpoint(tmp_path / "bert", checkpoints.seeded(config, kind=tf.AutoModel), tokenizer=False)
    refused(tmp_path / "bert", tmp_path / "out", "the checkpoint is for something else", task="text-generation")
    assert "feature-extraction" in recipe_of(tmp_path / "bert")


def test_a_cache_that_two_axes_may_share_out_is_refused(checkpoint: Path, tmp_path: Path):
    blocks = "model.model.layers.*"
    parallel = {f"{blocks}.self_attn.{name}_proj": "colwise@a" for name in "qkv"} | {
        f"{blocks}.self_attn.o_proj": "rowwise@a",
        f"{blocks}.mlp.gate_proj": "colwise@b",
        f"{blocks}.mlp.up_proj": "colwise@b",
        f"{blocks}.mlp.down_proj": "rowwise@b",
    }
    recipe = {"name": "x", "model": {"pretrained": str(checkpoint)}, "mesh": {"a": 2, "b": 2}, "parallel": parallel}
    with pytest.raises(UnsupportedError, match="which axis shares out the cache"):
        aotair.build(recipe, tmp_path / "x.aotair")
    assert not (tmp_path / "x.aotair").exists()


def test_an_adapter_has_the_names_of_the_checkpoint(checkpoint: Path, artifact: Path, tmp_path: Path):
    """As PEFT writes them: the artifact's own have one `model.` more."""
    model = tf.AutoModelForCausalLM.from_pretrained(checkpoint)
    layer = model.model.layers[0].self_attn.q_proj
    a, b = torch.randn(2, layer.in_features), torch.randn(layer.out_features, 2)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    safetensors.torch.save_file(factors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    layer.weight.data += 2 * (b @ a)
    with aotair.load(artifact, enable_output_clone=True) as served:
        served.load_adapter(tmp_path)
        assert generate(served, PROMPTS, 10) == [checkpoints.generated(model, prompt, 10) for prompt in PROMPTS]
