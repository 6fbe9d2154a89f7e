"""Which model keeps keys and values that the recipe's `quantize.kv_cache` can have in whole numbers, and on which texts
is it measured what that moves?"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from ..errors import ModelError
from ..recipe.job import Job
from .calibration import Calibration

_SHORTEST = 8  # tokens


@runtime_checkable
class KeepsCache(Protocol):
    """A model of keys and values that it can keep otherwise: those of `model.pretrained`."""

    @property
    def attends(self) -> bool:
        """Whether any layer keeps keys and values."""

    def quantize_cache(self) -> int:
        """Keep them in int8 from now on; gives of how many layers."""

    def tried(self, texts: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, float]]:
        """The logits of texts (tokens,) through the cache, or of random tokens where there is none; and by buffer how
        far int8 moves what they leave there."""


def cache_to_quantize(model: nn.Module, job: Job) -> KeepsCache | None:
    """The model, where the recipe asks for its cache in whole numbers. Raises ModelError where it cannot."""
    if job.quantize is None or job.quantize.kv_cache is None:
        return None
    if not isinstance(model, KeepsCache):
        raise ModelError(
            "quantize.kv_cache: the model keeps no cache that a recipe can change",
            where=job.where,
            expected="model.pretrained with the task text-generation",
            got=type(model).__name__,
            fix="remove quantize.kv_cache; a factory's model says itself what its buffers are",
        )
    if not model.attends:
        raise ModelError(
            "quantize.kv_cache: no layer of the model keeps keys and values",
            where=job.where,
            expected="a decoder with attention; recurrent and convolutional states stay as they are",
            fix="remove quantize.kv_cache",
        )
    return model


def texts_of(calibration: Calibration) -> list[Tensor]:
    """The tokens of the prompts among the calls of a calibration, each (tokens,), that are long enough to be a prompt
    and tokens after it."""
    found = []
    for _, calls in calibration.calls:
        for call in calls:
            ids, mask = call.get("input_ids"), call.get("attention_mask")
            if ids is not None and mask is not None and ids.shape == mask.shape:
                found += [row[seen > 0] for row, seen in zip(ids, mask, strict=True)]
    return [text for text in found if len(text) >= _SHORTEST]
