"""The task text-generation: a decoder as `prefill`, `decode`, `extend` and `verify` over rows of a cache."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers

from ..errors import ModelError
from . import experts
from .agree import refuse_disagreement
from .language import LanguageModel
from .source import Source, load

NAME = "text-generation"
# slots: sequences that the cache holds; length: tokens of each, null: as many as the model knows, 1,024 at most;
# greedy: give the likeliest token, not the logits.
OPTIONS: Mapping[str, object] = {"slots": 8, "length": None, "greedy": False}
DEFAULTS = ("prefill", "decode")
_LENGTH = 1024


def serves(source: Source) -> bool:
    """Whether transformers has a decoder for the configuration, and the checkpoint is of one."""
    known = type(source.config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    named = source.config.architectures or []
    return known and (
        not named or any(name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in named)
    )


def make(source: Source, dtype: torch.dtype, options: Mapping[str, Any], where: str) -> LanguageModel:
    slots, length = _sizes(source, options, where)
    model = load(source, transformers.AutoModelForCausalLM, dtype, where)
    experts.serve(model)
    made = LanguageModel(model, slots, length, bool(options["greedy"])).eval()
    refuse_disagreement(made, where)
    return made


def shown(source: Source) -> dict[str, object]:
    slots, length = _sizes(source, OPTIONS, "aotair init")
    return {"slots": slots, "length": length}


def parts(source: Source, options: Mapping[str, Any]) -> dict[str, Any]:
    slots, length = _sizes(source, options, "recipe")
    vocabulary = source.text_config.vocab_size
    ids = {"dtype": "int64", "range": [0, vocabulary], "pad": "any"}
    rows = {"shape": ["batch"], "dtype": "int64", "range": [0, slots], "distinct": True, "pad": slots}
    mask = {"shape": ["batch", "seq"], "dtype": "int64", "mask": "right", "pad": 0}
    places = {"shape": ["batch"], "dtype": "int64", "range": [0, length], "pad": 0}
    prompt = {"input_ids": {"shape": ["batch", "seq"], **ids}, "attention_mask": mask}
    batches = [size for size in (1, 2, 4, 8) if size <= slots]
    several = {"inputs": {**prompt, "positions": places, "slots": rows}, "buckets": {"batch": [1], "seq": [8]}}
    return {
        "entry_points": {
            "prefill": {
                "method": "prefill",
                "inputs": {**prompt, "slots": rows},
                "buckets": {"batch": [1], "seq": [size for size in (32, 128, 512) if size < length] or [length]},
            },
            "decode": {
                "method": "decode",
                "inputs": {"input_ids": {"shape": ["batch"], **ids}, "positions": places, "slots": rows},
                "buckets": {"batch": batches},
            },
            "extend": {"method": "extend", **several},
            "verify": {"method": "verify", **several},
        }
    }


def _sizes(source: Source, options: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Slots and length; raises ModelError where they are none."""
    known = getattr(source.text_config, "max_position_embeddings", None)
    length = options["length"] if options["length"] is not None else min(known or _LENGTH, _LENGTH)
    for name, value, most in (("slots", options["slots"], 1 << 16), ("length", length, known or 1 << 24)):
        if type(value) is not int or not 1 <= value <= most:
            raise ModelError(
                f"model.kwargs.{name}: not possible",
                where=where,
                expected=f"a number from 1 to {most}",
                got=repr(value),
            )
    return int(options["slots"]), int(length)
