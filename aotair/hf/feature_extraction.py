"""The task feature-extraction: an encoder's checkpoint as `forward(input_ids, attention_mask)`, pooled and normalised
where the checkpoint says how (`modules.json`, as sentence-transformers writes it)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from ..errors import ModelError, UnsupportedError
from ..recipe.entry import EntryJob
from ..target.target import Target
from .prompts import shortened
from .source import Source, load

NAME = "feature-extraction"
OPTIONS: Mapping[str, object] = {}
DEFAULTS: tuple[str, ...] = ()
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


def serves(source: Source) -> bool:
    """Whether transformers has a model of token ids for the configuration that is no decoder."""
    known = type(source.config) in transformers.MODEL_MAPPING
    return known and hasattr(source.config, "vocab_size") and not getattr(source.config, "is_encoder_decoder", False)


def make(source: Source, dtype: torch.dtype, target: Target, options: Mapping[str, Any], where: str) -> nn.Module:
    model = load(source, transformers.AutoModel, dtype, target, where)
    return Encoder(model, _modules(source, where)).eval()


def shown(source: Source) -> dict[str, object]:
    return {}


def parts(
    source: Source, options: Mapping[str, Any], device: str, dtype: torch.dtype, int8_cache: bool = False
) -> dict[str, Any]:
    most = min(getattr(source.config, "max_position_embeddings", 512) or 512, 256)
    vocabulary = source.config.vocab_size
    return {
        "inputs": {
            "input_ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, vocabulary], "pad": "any"},
            "attention_mask": {"shape": ["batch", "seq"], "dtype": "int64", "mask": "right", "pad": 0},
        },
        "buckets": {"batch": [1, 8], "seq": [size for size in (16, 64, 256) if size <= most] or [most]},
    }


def prompted(ids: Sequence[int], entry: EntryJob) -> dict[str, torch.Tensor]:
    row = torch.tensor([shortened(ids, entry)])
    return {"input_ids": row, "attention_mask": torch.ones_like(row)}


class Encoder(nn.Module):
    """An encoder, and what sentence-transformers does with its hidden states, in that order: `steps` are poolings
    (`cls`, `mean`, `max`, `last`), `normalize`, or nothing: then the hidden states (batch, seq, width) are the answer.
    """

    def __init__(self, model: nn.Module, steps: tuple[str, ...]):
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask, (batch, seq), to embeddings (batch, width), or hidden states where nothing pools them."""
        found: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        for step in self.steps:
            if step == "normalize":
                found = nn.functional.normalize(found, dim=-1)
            else:
                found = _pooled(step, found, attention_mask)
        return found


def _pooled(how: str, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if how == "cls":
        return hidden[:, 0]
    if how == "last":
        last = (mask.sum(1) - 1).clamp(min=0)
        return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    if how == "max":
        return hidden.masked_fill(weight == 0, torch.finfo(hidden.dtype).min).amax(1)
    return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


def _modules(source: Source, where: str) -> tuple[str, ...]:
    """The steps after the transformer, as `modules.json` lists them."""
    if source.is_gguf or not (source.path / "modules.json").is_file():
        return ()
    steps: list[str] = []
    for module in _json(source.path / "modules.json", list):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            steps.append(_pooling(source.path / str(module.get("path", "")), where))
        elif kind == "Normalize":
            steps.append("normalize")
        elif kind != "Transformer":
            raise UnsupportedError(
                f"model.pretrained: modules.json names {kind or module}, which is not built",
                where=where,
                expected="Transformer, Pooling, Normalize",
                fix="write a factory (model.factory)",
            )
    return tuple(steps)


def _pooling(folder: Path, where: str) -> str:
    said = _json(folder / "config.json", dict)
    asked = [name for name, value in said.items() if name.startswith("pooling_mode_") and value is True]
    asked += [f"pooling_mode_{said['pooling_mode']}"] if isinstance(said.get("pooling_mode"), str) else []
    names = {**_POOLINGS, **{f"pooling_mode_{short}": short for short in _POOLINGS.values()}}
    if len(asked) != 1 or asked[0] not in names:
        raise UnsupportedError(
            "model.pretrained: this pooling is not built",
            where=str(folder / "config.json"),
            expected=f"one of {', '.join(_POOLINGS)}",
            got=", ".join(asked) or "none",
        )
    return names[asked[0]]


def _json(file: Path, kind: type) -> Any:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"model.pretrained: not readable: {error}", where=str(file)) from error
    if not isinstance(found, kind):
        raise ModelError("model.pretrained: not what it should hold", where=str(file), expected=kind.__name__)
    return found
