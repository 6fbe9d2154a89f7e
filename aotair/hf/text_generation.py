"""The task text-generation: a decoder as `prefill`, `decode`, `extend` and `verify` over rows of a cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from aotair_runtime.errors import AotairError

from ..errors import ModelError, UnsupportedError
from ..recipe.entry import EntryJob
from ..target.target import Target
from . import experts
from .agree import refuse_disagreement
from .language import Decoder, LanguageModel, PagedLanguageModel
from .prompts import shortened
from .source import Source, load
from .walk import DECODED

NAME = "text-generation"
# cache: `static`, a row of `length` tokens for each of `slots` sequences; or `paged`, `blocks` of `block` tokens, any
# for any sequence (null: as many as `slots` rows have). length: null is what the model knows, 1,024 at most. greedy:
# the likeliest token instead of the logits.
OPTIONS: Mapping[str, object] = {
    "cache": "static",
    "slots": 8,
    "length": None,
    "block": 16,
    "blocks": None,
    "greedy": False,
}
DEFAULTS = ("prefill", "decode")
_LENGTH = 1024
_NPU_DTYPES = (torch.float16, torch.bfloat16)
_KINDS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def serves(source: Source) -> bool:
    """Whether transformers has a decoder for the configuration, and the checkpoint is of one: not of an encoder and a
    decoder, of which it would take the half."""
    if getattr(source.config, "is_encoder_decoder", False):
        return False
    named = source.config.architectures or [_KINDS[0]]
    return type(source.config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and any(n.endswith(_KINDS) for n in named)


def make(source: Source, dtype: torch.dtype, target: Target, options: Mapping[str, Any], where: str) -> Decoder:
    sizes = _sizes(source, options, where)
    model = load(source, transformers.AutoModelForCausalLM, dtype, target, where)
    experts.serve(model)
    try:
        made = _over_rows(model, sizes, bool(options["greedy"]), target)
        refuse_disagreement(made, where, sizes.host_lengths(target.kind, dtype))
    except AotairError:
        raise
    except Exception as error:  # of transformers' own code, which was not written for this cache
        raise UnsupportedError(
            f"{type(model).__name__} cannot be called over rows of a cache: {type(error).__name__}: {error}",
            where=where,
            expected="a decoder that keeps what it needs of tokens in the cache that it is given",
            fix="this architecture needs a wrapper of its own: write it as a factory (model.factory)",
        ) from error
    return made


def _over_rows(model: Any, sizes: "_Sizes", greedy: bool, target: Target) -> Decoder:
    in_place = target.kind == "cpu"
    if sizes.paged:
        return PagedLanguageModel(model, sizes.blocks, sizes.block, sizes.length, greedy, in_place, target.nz).eval()
    return LanguageModel(model, sizes.slots, sizes.length, greedy, in_place).eval()


def shown(source: Source) -> dict[str, object]:
    sizes = _sizes(source, OPTIONS, "aotair init")
    return {"cache": "static", "slots": sizes.slots, "length": sizes.length}


def parts(
    source: Source, options: Mapping[str, Any], device: str, dtype: torch.dtype, int8_cache: bool = False
) -> dict[str, Any]:
    sizes = _sizes(source, options, "recipe")
    of_each = {"shape": ["batch"], "dtype": "int64", "range": [1, sizes.length + 1], "host": True, "pad": 1}
    on_host = {"lengths": of_each} if sizes.host_lengths(device, dtype) and not int8_cache else {}
    ids = {"dtype": "int64", "range": [0, source.text_config.vocab_size], "pad": "any"}
    prompt = {
        "input_ids": {"shape": ["batch", "seq"], **ids},
        "attention_mask": {"shape": ["batch", "seq"], "dtype": "int64", "mask": "right", "pad": 0},
    }
    positions = {"shape": ["batch"], "dtype": "int64", "range": [0, sizes.length], "pad": 0}
    at = {"positions": positions, **sizes.rows()}
    batches = [size for size in (1, 2, 4, 8) if size <= sizes.slots]
    lengths = [size for size in (32, 128, 512) if size < sizes.length] or [sizes.length]
    several = {"inputs": {**prompt, **at}, "buckets": {"batch": [1], "seq": [min(8, sizes.length)]}}
    return {
        "entry_points": {
            "prefill": {
                "method": "prefill",
                "inputs": {**prompt, **sizes.rows()},
                "buckets": {"batch": [1], "seq": lengths},
            },
            "decode": {
                "method": "decode",
                "inputs": {"input_ids": {"shape": ["batch"], **ids}, **at, **on_host},
                "buckets": {"batch": batches},
            },
            "extend": {"method": "extend", **several},
            "verify": {"method": "verify", **several},
        }
    }


def prompted(ids: Sequence[int], entry: EntryJob) -> dict[str, torch.Tensor]:
    """One sequence in the first row or blocks: all of it in `prefill`; its last token, or as many last tokens as a call
    has, in the others."""
    part = {"decode": list(ids[-1:]), "prefill": shortened(ids, entry)}.get(entry.method)
    if part is None:
        part = list(ids[-len(shortened(ids, entry)) :])
    row = torch.tensor([part])
    call = {"input_ids": row[:, 0] if entry.method == "decode" else row}
    if entry.method != "decode":
        call["attention_mask"] = torch.ones_like(row)
    if entry.method != "prefill":
        call["positions"] = torch.tensor([len(ids) - len(part)])
    if "slots" in entry.inputs:
        return call | {"slots": torch.zeros(1, dtype=torch.int64)}
    if "lengths" in entry.inputs:
        call["lengths"] = call["positions"] + 1
    columns = entry.inputs["block_table"].shape[-1] if "block_table" in entry.inputs else 0
    return call | {"block_table": torch.arange(int(columns))[None]}


@dataclass(frozen=True)
class _Sizes:
    """Of the cache; `slots`: sequences that it holds at their full `length`."""

    paged: bool
    slots: int
    length: int
    block: int
    blocks: int

    def host_lengths(self, device: str, dtype: torch.dtype) -> bool:
        """Whether `decode` takes the lengths of the sequences on the host: where the NPU's attention over blocks reads
        the cache, in the dtypes and blocks that it has."""
        return self.paged and device == "npu" and dtype in _NPU_DTYPES and self.block % 16 == 0 and self.block <= 512

    def rows(self) -> dict[str, Any]:
        """The input that says where sequences lie. Rows are apart; blocks may be fewer than all sequences could have,
        and sequences may share those that both only read."""
        if self.paged:
            shape = ["batch", self.length // self.block]
            return {"block_table": {"shape": shape, "dtype": "int64", "range": [0, self.blocks], "pad": self.blocks}}
        slots = {"shape": ["batch"], "dtype": "int64", "range": [0, self.slots], "distinct": True, "pad": self.slots}
        return {"slots": slots}


def _sizes(source: Source, options: Mapping[str, Any], where: str) -> _Sizes:
    """The sizes that the options say; raises ModelError where they are none."""
    known = getattr(source.text_config, "max_position_embeddings", None)
    known = known if known and known > 0 else None  # XLNet says -1: any
    if options["cache"] not in ("static", "paged"):
        raise ModelError(
            "model.kwargs.cache: not possible", where=where, expected="static or paged", got=repr(options["cache"])
        )
    length = options["length"] if options["length"] is not None else min(known or _LENGTH, _LENGTH)
    limits = {"slots": (options["slots"], 1 << 16), "length": (length, known or 1 << 24)}
    paged, blocks = options["cache"] == "paged", options["blocks"]
    limits |= {"block": (options["block"], length)} if paged else {}
    limits |= {"blocks": (blocks, 1 << 24)} if paged and blocks is not None else {}
    for name, (value, most) in limits.items():
        least = DECODED + 1 if name == "length" else 1  # so much is tried before a build
        if type(value) is not int or not least <= value <= most:
            raise ModelError(
                f"model.kwargs.{name}: not possible",
                where=where,
                expected=f"a number from {least} to {most}",
                got=repr(value),
            )
    if not paged:
        return _Sizes(False, options["slots"], length, length, options["slots"])
    return _paged_sizes(options["slots"], length, options["block"], blocks, where)


def _paged_sizes(slots: int, length: int, block: int, blocks: int | None, where: str) -> _Sizes:
    if length % block:
        raise ModelError(
            "model.kwargs.block: not possible",
            where=where,
            expected=f"a number that divides length, {length}",
            got=str(block),
        )
    columns = length // block
    blocks = slots * columns if blocks is None else blocks
    if blocks < columns:
        raise ModelError(
            "model.kwargs.blocks: not possible",
            where=where,
            expected=f"{columns} at least: one sequence",
            got=str(blocks),
        )
    return _Sizes(True, slots, length, block, blocks)
