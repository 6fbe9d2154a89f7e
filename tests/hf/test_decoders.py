"""Do transformers' decoders, over rows of a cache, answer as they do themselves? Each at sizes of its own kind."""

from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers as tf

from aotair.errors import ModelError, UnsupportedError
from aotair.hf import experts, text_generation
from aotair.hf.agree import refuse_disagreement
from aotair.hf.language import LanguageModel, PagedLanguageModel
from aotair.hf.source import open_source
from benchmarks.decoder_models import DECODERS

LENGTHS = (3, 17, 5, 12, 1)
STEPS = 12


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, LanguageModel, list[torch.Tensor]]:
    """A model, the same over eight rows of 64 tokens, and sequences of `LENGTHS` and twelve tokens more."""
    model = checkpoints.seeded(DECODERS[request.param]())
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randint(1, 256, (length + STEPS,), generator=generator) for length in LENGTHS]
    experts.serve(model)
    return model, LanguageModel(model, 8, 64, in_place=True).eval(), whole


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=7) for row in rows])
    return ids, torch.stack([(torch.arange(width) < len(row)).to(torch.int64) for row in rows])


def near(got: torch.Tensor, want: torch.Tensor, scale: float) -> bool:
    return bool((got - want).abs().max() <= 2e-5 * scale)


def test_tokens_one_by_one_get_the_logits_of_whole_sequences(decoder):
    model, made, whole = decoder
    slots = torch.tensor([4, 2, 0, 7, 3])
    with torch.no_grad():
        want = [model(input_ids=row[None], use_cache=False).logits[0] for row in whole]
        steps = [made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), slots)]
        for step in range(STEPS):
            tokens = torch.stack([row[n + step] for row, n in zip(whole, LENGTHS)])
            steps.append(made.decode(tokens, torch.tensor(LENGTHS) + step, slots))
    scale = max(float(row.abs().max()) for row in want)
    for step, got in enumerate(steps):
        assert near(got, torch.stack([row[n - 1 + step] for row, n in zip(want, LENGTHS)]), scale), step


def test_a_paged_cache_and_one_that_is_copied_out_give_the_same_logits(decoder):
    model, made, whole = decoder
    if made.recurrent:
        with pytest.raises(UnsupportedError, match="no blocks"):
            PagedLanguageModel(model, 40, 8, 64)
        return
    paged, copied = PagedLanguageModel(model, 40, 8, 64, in_place=True).eval(), LanguageModel(model, 8, 64).eval()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    table = order.view(5, 8)
    prompts = padded([row[:n] for row, n in zip(whole, LENGTHS)])
    slots, starts = torch.tensor([4, 2, 0, 7, 3]), torch.tensor(LENGTHS)
    with torch.no_grad():
        want = [made.prefill(*prompts, slots)]
        others = [[paged.prefill(*prompts, table)], [copied.prefill(*prompts, slots)]]
        for step in range(STEPS):
            tokens = torch.stack([row[n + step] for row, n in zip(whole, LENGTHS)])
            want.append(made.decode(tokens, starts + step, slots))
            others[0].append(paged.decode(tokens, starts + step, table))
            others[1].append(copied.decode(tokens, starts + step, slots))
    scale = max(float(one.abs().max()) for one in want)
    for other in others:
        assert all(near(a, b, scale) for a, b in zip(other, want, strict=True))


def test_rows_of_padding_and_of_others_stay_what_they_are(decoder):
    _, made, whole = decoder
    with torch.no_grad():
        made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), torch.tensor([4, 2, 0, 7, 3]))
        before = [row.clone() for row in made.rows()]
        made.decode(torch.tensor([5, 6]), torch.tensor([3, 9]), torch.tensor([4, 8]))  # the second one is padding
    for old, new in zip(before, made.rows(), strict=True):
        rows = len(new) // 9
        changed = {
            n for n in range(9) if not torch.equal(old[n * rows : (n + 1) * rows], new[n * rows : (n + 1) * rows])
        }
        assert changed <= {4}


def test_what_extends_a_sequence_gets_the_logits_of_the_whole(decoder):
    model, made, whole = decoder
    if made.recurrent:
        with pytest.raises(UnsupportedError, match="recurrent"):
            made.extend(*padded(whole), torch.tensor(LENGTHS), torch.arange(5))
        return
    slots, counts = torch.tensor([1, 6, 5, 2, 0]), (4, 12, 7, 1, 9)
    ids, mask = padded([row[n : n + count] for row, n, count in zip(whole, LENGTHS, counts)])
    starts = torch.tensor(LENGTHS)
    with torch.no_grad():
        want = [model(input_ids=row[None], use_cache=False).logits[0] for row in whole]
        scale = max(float(row.abs().max()) for row in want)
        made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), slots)
        every = made.verify(ids, mask, starts, slots)
        made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), slots)
        last = made.extend(ids, mask, starts, slots)
    for row, (n, count) in enumerate(zip(LENGTHS, counts)):
        assert near(every[row, :count], want[row][n : n + count], scale)
        assert near(last[row], want[row][n + count - 1], scale)


def test_the_check_before_a_build_agrees(decoder):
    _, made, _ = decoder
    refuse_disagreement(made, "here")
    assert not any(row.any() for row in made.rows()), "the rows are as they were"


@pytest.mark.parametrize("fault", ["window", "positions", "heads", "state"])
def test_the_check_before_a_build_sees_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch):
    kind = {"window": "mistral", "state": "lfm2"}.get(fault, "llama")
    made = LanguageModel(checkpoints.seeded(DECODERS[kind]()), 8, 64).eval()
    if fault == "window":
        made.model.config.sliding_window = None
        made._answer, honest = lambda *args: _with_window(made, honest, *args), made._answer
    elif fault == "positions":
        monkeypatch.setattr(
            "aotair.hf.caches.Call.positions", property(lambda call: torch.ones_like(call.real, dtype=torch.int64))
        )
    elif fault == "heads":
        monkeypatch.setattr("aotair.hf.caches.AttentionLayer._plain", _heads_swapped)
    else:
        monkeypatch.setattr("aotair.hf.caches._StateLayer.store", lambda layer: None)
    with pytest.raises(UnsupportedError, match="computes something else over rows of a cache"):
        refuse_disagreement(made, "here")


def _with_window(made: LanguageModel, honest: Any, *args: Any) -> torch.Tensor:
    made.model.config.sliding_window = 8
    try:
        return honest(*args)
    finally:
        made.model.config.sliding_window = None


def _heads_swapped(layer: Any, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    call = layer._call
    batch, heads, tokens, width = new.shape
    rows = new.flip(1).transpose(1, 2).reshape(batch * tokens, heads * width)
    cache.index_copy_(0, call.places, torch.where(call.written, rows, cache.index_select(0, call.places)))
    if call.fresh:
        return new
    kept = cache.view(-1, call.length * heads * width).index_select(0, call.table[:, 0])
    return kept.view(batch, call.length, heads, width).transpose(1, 2)


@pytest.mark.parametrize("kind, length", [("phi3_long", 65), ("llama4", 8192)])
def test_what_changes_for_a_whole_batch_with_its_longest_sequence_is_refused_by_name(kind: str, length: int):
    model = checkpoints.seeded(DECODERS[kind]())
    with pytest.raises(ModelError, match="changes for all sequences of a batch"):
        LanguageModel(model, 1, length)


def test_a_decoder_that_fails_over_rows_of_a_cache_is_refused_by_name(tmp_path: Path):
    config = tf.MptConfig(vocab_size=256, d_model=64, n_heads=4, n_layers=2, max_seq_len=64)
    checkpoints.write_checkpoint(tmp_path / "mpt", checkpoints.seeded(config), tokenizer=False)
    source = open_source(tmp_path / "mpt", "here")
    with pytest.raises(UnsupportedError, match=r"MptForCausalLM (cannot be called|computes something else)"):
        text_generation.make(source, torch.float32, "cpu", dict(text_generation.OPTIONS, length=32), "here")
