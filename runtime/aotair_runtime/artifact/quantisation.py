"""What does a checkpoint's folder say of how its weights are quantised? Two that say the same mean the same numbers."""

import hashlib
import json
from pathlib import Path

import safetensors

from ..errors import WeightsError
from .checkpoint import Checkpoint
from .json_file import json_object

CONFIG, DESCRIPTION = "config.json", "quant_model_description*.json"  # the second is msModelSlim's
PARTS = ("quantization_config", "compression_config")  # the second is what compressed-tensors wrote at first
_TYPED = '"_type"'  # what torchao's headers hold of each tensor
_SAYS_NOTHING = ("global_compression_ratio", "meta", "quantization_status")  # of what numbers mean
_MOST_BYTES = 1 << 26


def quantisation_of(checkpoint: Checkpoint) -> str:
    """A digest (SHA-256, hexadecimal) of all that says how the tensors are to be read; empty where nothing does. Raises
    WeightsError where a file cannot be read."""
    said: dict[str, object] = {}
    if checkpoint.path.is_dir():
        config = _object(checkpoint.path / CONFIG)
        said |= {part: _meaning(config[part]) for part in PARTS if config.get(part) is not None}
        for file in sorted(checkpoint.path.glob(DESCRIPTION)):
            said[file.name] = _object(file)
    said |= _headers(checkpoint)
    if not said:
        return ""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _meaning(config: object) -> object:
    if not isinstance(config, dict):
        return config
    nothing = {*_SAYS_NOTHING, *(("version",) if config.get("quant_method") == "compressed-tensors" else ())}
    return {name: value for name, value in config.items() if name not in nothing}


def _headers(checkpoint: Checkpoint) -> dict[str, object]:
    found: dict[str, object] = {}
    for file in dict.fromkeys(stored.file for stored in checkpoint.tensors.values()):
        with safetensors.safe_open(str(file), framework="pt") as handle:
            found |= {name: text for name, text in (handle.metadata() or {}).items() if _TYPED in text}
    return found


def _object(file: Path) -> dict[str, object]:
    """What a JSON file says; nothing where there is no file."""
    if not file.is_file():
        return {}
    try:
        return json_object(file, _MOST_BYTES)
    except ValueError as error:
        raise WeightsError(f"a description of the checkpoint cannot be read: {error}", where=str(file)) from error
