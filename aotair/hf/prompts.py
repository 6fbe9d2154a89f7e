"""Texts that a checkpoint's own tokenizer makes inputs of: what a proof and a calibration call the model with."""

from collections.abc import Mapping, Sequence

import torch

from ..errors import ModelError
from ..log import logger
from ..recipe.entry import EntryJob
from ..recipe.recipe import InputPart
from .source import Source, tokenizer

# Where a recipe names none: a few words, and text with numbers, code and several scripts.
TEXTS = (
    "What is the capital of France?",
    "In 1969, two people walked on the Moon: def area(r): return 3.14159 * r ** 2  # Größe, размер, 大小.",
)
_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def tokens_of(source: Source, texts: Sequence[str] | None, where: str) -> list[list[int]]:
    """Token ids of each text; of TEXTS where `texts` is None and the checkpoint has a tokenizer. Raises ModelError
    where texts are given that cannot be made tokens."""
    if texts is None and not (source.is_gguf or any((source.path / name).is_file() for name in _FILES)):
        return []
    try:
        made = tokenizer(source, where)
    except ModelError as error:
        if texts is not None:
            raise
        logger.warning("the proof calls the model with random token ids alone: %s", error.what)
        return []
    return [ids for text in (TEXTS if texts is None else texts) if (ids := list(made(text)["input_ids"]))]


def shortened(ids: Sequence[int], entry: EntryJob) -> list[int]:
    """As many of the ids as a call of the entry point may have, along its dimension `seq`."""
    dims = entry.dims()
    if "seq" not in dims:
        return list(ids)
    return list(ids[: max(sizes[dims.index("seq")] for sizes in entry.bucket_sizes())])


def takes(entry: EntryJob, call: Mapping[str, torch.Tensor]) -> bool:
    """Whether the entry point, as the recipe has it, has a bucket for a call: by its inputs, their sizes and values."""
    if set(call) != set(entry.inputs):
        return False
    sizes: dict[str | int, int] = {}
    for name, item in entry.inputs.items():
        if call[name].dim() != len(item.shape):
            return False
        for size, dim in zip(call[name].shape, item.shape):
            sizes.setdefault(dim, size)
            if size != (sizes[dim] if isinstance(dim, str) else dim):
                return False
    dims = entry.dims()
    named = {dim: sizes[dim] for dim in dims}
    within = all(_within(item, call[name]) for name, item in entry.inputs_at(named).items())
    return within and any(_holds(entry, dict(zip(dims, bucket)), named) for bucket in entry.bucket_sizes())


def _within(item: InputPart, tensor: torch.Tensor) -> bool:
    if item.range is None:
        return True
    low, high = item.ends
    return bool(((tensor >= low) & (tensor < high)).all())


def _holds(entry: EntryJob, bucket: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    return all(
        sizes[dim] == size or (entry.paddable(dim) and entry.least(dim) <= sizes[dim] < size)
        for dim, size in bucket.items()
    )
