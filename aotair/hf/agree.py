"""Does a model over rows of a cache answer as transformers' own does, without one?

An architecture may do what nobody thought of: positions from somewhere else, a mask of its own, state in a module. The
proof of a build compares with the model over the cache, so it would not see that; this does, before anything is built.
"""

import torch

from ..errors import UnsupportedError
from .language import Decoder
from .walk import DECODED, through_the_cache

_MOST = 1024  # tokens that are tried, where a sliding window asks for many
_BEYOND = 12
# Of float32, relative to the largest logit: about a hundred times what layers lose by rounding. Narrower dtypes are
# compared by what they hold.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.bfloat16: 0.15, torch.float16: 0.03}


def refuse_disagreement(made: Decoder, where: str, host_lengths: bool = False) -> None:
    """Raises UnsupportedError where prompts of unlike lengths, and tokens after them, get other logits than the model
    itself computes of the whole sequences. `host_lengths`: `decode` is given the lengths of the sequences."""
    lengths = _lengths(made)
    generator = torch.Generator().manual_seed(1)
    vocabulary = made.config.get_text_config().vocab_size
    whole = [torch.randint(vocabulary, (length,), generator=generator) for length in lengths]
    with torch.no_grad():
        want = [made.model(input_ids=row[None], use_cache=False).logits[0, -DECODED - 1 :] for row in whole]
        try:
            got = through_the_cache(made, whole, host_lengths)
        finally:
            made.clear()
    largest = max(float(row.abs().max()) for row in want)
    error = max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True))
    if not error <= _TOLERANCE[want[0].dtype] * largest:
        raise UnsupportedError(
            f"{type(made.model).__name__} computes something else over rows of a cache than over whole sequences",
            where=where,
            expected="the same logits for prompts, and for tokens one by one after them",
            got=f"an error of {error:.3g}, where the largest logit is {largest:.3g}",
            fix="this architecture needs a wrapper of its own: write it as a factory (model.factory)",
        )


def _lengths(made: Decoder) -> tuple[int, ...]:
    """Of two sequences: one that is longer than what a layer looks back to, where that is less than the cache, and a
    short one beside it."""
    config = made.config.get_text_config()
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    looks = max((size for size in windows if isinstance(size, int) and size < made.length), default=0)
    longest = min(looks + _BEYOND, made.length, _MOST)
    return (longest, max(DECODED + 1, longest // 2)) if made.blocks >= 2 * made.columns else (longest,)
