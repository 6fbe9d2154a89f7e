"""A checkpoint whose linear layers another tool has quantised: transformers' model, with these layers as they lie."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aotair_runtime.artifact.checkpoint import open_checkpoint
from aotair_runtime.artifact.renamed import Naming, renamed

from ..model.checkpoints.replace import replace_quantised
from ..model.load import load_values
from ..target.target import Target


def is_quantised(config: Any) -> bool:
    return bool(getattr(config, "quantization_config", None))


def load_quantised(path: Path, config: Any, kind: Any, dtype: torch.dtype, target: Target) -> nn.Module:
    """The model of one of transformers' auto classes, and the checkpoint's weights. Layers that are quantised keep the
    tensors of the checkpoint; no floats are made of them. Raises ModelError and WeightsError."""
    from accelerate import init_empty_weights

    plain = copy.deepcopy(config)
    del plain.quantization_config
    with init_empty_weights(include_buffers=False):
        model = kind.from_config(plain, dtype=dtype)
    model.tie_weights()  # ties made above are lost: each registration made a tensor of its own
    checkpoint = renamed(open_checkpoint(path), model.state_dict().keys(), Naming())
    replace_quantised(model, checkpoint, target)
    _give_memory(model)
    load_values(model, checkpoint)
    found: nn.Module = model
    return found


def _give_memory(model: nn.Module) -> None:
    """Memory for each parameter that has none, once for all names of it."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False, remove_duplicate=False):
            if value.is_meta:
                if id(value) not in made:
                    made[id(value)] = nn.Parameter(torch.empty_like(value, device="cpu"), requires_grad=False)
                setattr(module, name, made[id(value)])
