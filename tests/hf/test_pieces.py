"""What transformers joins or renames when it loads a checkpoint is found again when the next one is loaded."""

from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers as tf
from marks import long
from safetensors.torch import load_file, save_file

import aotair
from aotair.hf.pieces import held_in_pieces
from aotair_runtime.artifact.checkpoint import open_checkpoint
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import WeightsError
from aotair_runtime.format.schema import Joined
from examples.generate import generate

PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]


@pytest.mark.parametrize("name", ["mixtral", *map(long, ("qwen3_moe", "granitemoe", "gpt_neox", "deepseek_v3"))])
def test_the_next_checkpoint_as_it_was_saved(name: str, tmp_path: Path):
    """Experts apart, routers and heads under other names: outputs are those of the model that was saved."""
    for number, folder in enumerate(("first", "next")):
        checkpoints.seeded(checkpoints.decoder(name), seed=number).save_pretrained(tmp_path / folder)
    path = aotair.build(
        {
            "name": name,
            "model": {"pretrained": str(tmp_path / "first"), "kwargs": {"slots": 2, "length": 32}},
            "entry_points": {
                "prefill": {"buckets": {"batch": [2], "seq": [16]}},
                "decode": {"buckets": {"batch": [2]}},
            },
        },
        tmp_path / "a.aotair",
    )
    assert read_program(path).joined
    successor = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "next")
    with aotair.load(path, enable_output_clone=True) as served:
        served.load_weights(tmp_path / "next")
        assert generate(served, PROMPTS, 10) == [checkpoints.generated(successor, prompt, 10) for prompt in PROMPTS]
        file = tmp_path / "next" / "model.safetensors"
        last = read_program(path).joined[-1].pieces[0].replace("{}", "1").removeprefix("model.")
        save_file({key: value for key, value in load_file(file).items() if key != last}, file)
        with pytest.raises(WeightsError, match=r"missing|lacks pieces"):
            served.load_weights(tmp_path / "next")
        assert generate(served, PROMPTS[:1], 10) == [checkpoints.generated(successor, PROMPTS[0], 10)]


def parts(tmp_path: Path, own: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]) -> tuple[Joined, ...]:
    model = torch.nn.Module()
    for key, value in own.items():
        model.register_buffer(key, value)
    save_file(stored, tmp_path / "w.safetensors")
    return held_in_pieces(model, open_checkpoint(tmp_path / "w.safetensors"))


def test_pieces_one_behind_the_other_stacked_or_not(tmp_path: Path):
    whole, flat = torch.randn(3, 6, 4), torch.randn(10)
    stored: dict[str, Any] = {f"e.{n}.{k}.w": whole[n, 3 * k : 3 * k + 3].clone() for n in range(3) for k in range(2)}
    stored |= {"head": flat[:4].clone(), "tail": flat[4:].clone()}
    assert parts(tmp_path, {"experts": whole, "flat": flat}, stored) == (
        Joined("experts", ("e.{}.0.w", "e.{}.1.w"), 3),
        Joined("flat", ("head", "tail")),
    )


def test_pieces_in_another_order_or_changed_are_none(tmp_path: Path):
    whole = torch.randn(3, 6, 4)
    swapped = {f"e.{n}": whole[(n + 1) % 3].clone() for n in range(3)}
    assert parts(tmp_path, {"experts": whole}, swapped) == ()
    assert parts(tmp_path, {"experts": whole}, {f"e.{n}": whole[n].T.contiguous() for n in range(3)}) == ()
    assert parts(tmp_path, {"experts": whole}, {f"e.{n}": whole[n].clone() for n in (0, 2)}) == ()


def test_what_several_may_be_is_told_apart_by_its_layer_or_left_out(tmp_path: Path):
    ones = {f"layer.{n}.norm_weight".replace(".", "_"): torch.ones(4) for n in range(2)}
    assert parts(tmp_path, ones, {f"l.{n}.w": torch.ones(4) for n in range(2)}) == ()
    model = torch.nn.ModuleList(torch.nn.LayerNorm(4, bias=False) for _ in range(2))
    save_file({f"norms.{n}.scale": torch.ones(4) for n in range(2)}, tmp_path / "n.safetensors")
    found = held_in_pieces(model, open_checkpoint(tmp_path / "n.safetensors"))
    assert found == tuple(Joined(f"{n}.weight", (f"norms.{n}.scale",)) for n in range(2))
