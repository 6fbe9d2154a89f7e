"""What a model computes from the longest sequence of a call, or from one position for all, made the same for each call.

transformers' modules look at the whole batch there; an artifact serves sequences that know nothing of each other.
"""

from typing import Any

from ..errors import ModelError


def settle(model: Any, length: int) -> None:
    """Set the modules of `model` so that sequences of up to `length` tokens are computed alone as in any batch. Raises
    ModelError where that is not the same thing."""
    for module in model.modules():
        _settle_rotary(model, module, length)
        _settle_temperature(model, module, length)


def _settle_rotary(model: Any, module: Any, length: int) -> None:
    """Frequencies that grow once a sequence is longer than those of the training stay those of short ones."""
    kinds: Any = getattr(module, "rope_type", None)
    by_layer = isinstance(kinds, dict)
    for layer, kind in list(kinds.items()) if by_layer else [("", kinds)]:
        if not isinstance(kind, str) or not ("dynamic" in kind or kind == "longrope"):
            continue
        config = model.config.get_text_config()
        scaling = getattr(config, "rope_parameters", None) or {}
        scaling = scaling.get(layer, {}) if by_layer else scaling
        known = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
        if length > known:
            raise _too_long(model, f"its rotary embedding ({kind})", known, length)
        if by_layer:
            kinds[layer] = "settled"
        else:
            module.rope_type = "settled"


def _settle_temperature(model: Any, module: Any, length: int) -> None:
    """Scores of layers without rotary embedding are scaled by position, by one before `floor_scale` tokens."""
    if getattr(module, "attn_temperature_tuning", None):
        known = int(module.floor_scale) - 1
        if length > known:
            raise _too_long(model, "its attention's temperature", known, length)
        module.attn_temperature_tuning = False


def _too_long(model: Any, what: str, known: int, length: int) -> ModelError:
    return ModelError(
        f"{what} changes for all sequences of a batch once one is longer than {known} tokens",
        where=type(model).__name__,
        expected=f"a cache of {known} tokens at most",
        got=str(length),
        fix=f"set model.kwargs.length to {known} or less",
    )
