"""A GGUF file, written here by gguf itself: its weights, its tokenizer, and what is refused."""

from pathlib import Path

import checkpoints
import gguf
import pytest
import tokenizers
import transformers as tf
from click.testing import CliRunner

import aotair
from aotair.cli import main
from aotair.errors import ModelError
from aotair.hf.source import open_source, quietly, tokenizer
from aotair_runtime.artifact.companions import companions
from examples.generate import generate

LAYERS, HEADS, GROUPS, WIDTH, INNER = 2, 4, 2, 64, 128
PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(path: Path, merges: bool = True) -> Path:
    """A seeded Llama, with a token for each byte and one for "th"."""
    letters = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "th"]
    config = checkpoints.llama(vocab_size=len(letters) + 1, hidden_size=WIDTH, intermediate_size=INNER)
    state = checkpoints.seeded(config).state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*letters, "<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(letters) + [gguf.TokenType.CONTROL])
    if merges:
        writer.add_token_merges(["t h"])
    writer.add_eos_token_id(len(letters))
    writer.add_bos_token_id(len(letters))
    writer.add_chat_template(checkpoints.CHAT)
    for ours, theirs in {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}.items():
        writer.add_tensor(f"{theirs}.weight", state[f"{ours}.weight"].numpy())
    for layer in range(LAYERS):
        for ours, theirs in _NAMES.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):  # llama.cpp has the two halves of a rotation beside each other
                heads = HEADS if theirs == "attn_q" else GROUPS
                weight = weight.view(heads, 2, -1, WIDTH).transpose(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "Tiny-Llama.gguf")


def test_its_tokens_are_those_of_transformers_and_its_tokenizer_travels_along(file: Path, tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    first = CliRunner().invoke(main, ["init", str(file), "-o", str(recipe)])
    assert first.exit_code == 0 and "name: tiny-llama" in recipe.read_text(), first.output
    sizes = ["--set", "entry_points.prefill.buckets={batch: [2], seq: [16]}", "--set", "model.kwargs.length=64"]
    sizes += ["--set", "entry_points.decode.buckets.batch=[2]", "-o", str(tmp_path / "out")]
    built = CliRunner().invoke(main, ["build", str(recipe), *sizes])
    assert built.exit_code == 0, built.output
    with quietly():
        model = tf.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    with aotair.load(tmp_path / "out", enable_output_clone=True) as served:
        assert {"tokenizer.json", "config.json"} <= set(companions(served.program))
        assert generate(served, PROMPTS, 12) == [checkpoints.generated(model, prompt, 12) for prompt in PROMPTS]
    said = CliRunner().invoke(main, ["chat", str(tmp_path / "out"), "Hi", "--max-tokens", "3"])
    assert said.exit_code == 0, said.output


def test_one_whose_tokenizer_cannot_be_read_is_refused_before_the_build(tmp_path: Path):
    file = write(tmp_path / "bare.gguf", merges=False)
    with pytest.raises(ModelError, match="its tokenizer cannot be read"):
        aotair.build({"name": "bare", "model": {"pretrained": str(file)}}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_that_was_cut_is_refused(file: Path, tmp_path: Path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:4000])
    with pytest.raises(ModelError, match="configuration cannot be read"):
        aotair.build({"name": "cut", "model": {"pretrained": str(cut)}}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_configuration_and_the_tokenizer_are_read_once_and_again_when_the_file_changes(tmp_path, monkeypatch):
    file, read = write(tmp_path / "small.gguf"), []
    usual = tf.AutoConfig.from_pretrained
    monkeypatch.setattr(tf.AutoConfig, "from_pretrained", lambda *a, **k: read.append("config") or usual(*a, **k))
    theirs = tf.AutoTokenizer.from_pretrained
    monkeypatch.setattr(tf.AutoTokenizer, "from_pretrained", lambda *a, **k: read.append("tokens") or theirs(*a, **k))
    first = open_source(file, "here")
    first.config.vocab_size = 7  # a model changes its configuration
    assert open_source(file, "here").config.vocab_size != 7
    assert tokenizer(first, "here") is tokenizer(open_source(file, "here"), "here")
    assert read == ["config", "tokens"]
    file.touch()
    assert tokenizer(open_source(file, "here"), "here") is not None
    assert read == ["config", "tokens"] * 2
