"""Which layers may another module stand for? Those that do what their class says, and nothing else."""

from collections.abc import Mapping

from torch import nn

from aotair_runtime.artifact.checkpoint import some

from ..errors import ModelError


def refuse_altered(
    layers: Mapping[str, nn.Module],
    what: str,
    where: str,
    fix: str = "",
    kind: str = "linear layers",
    expected: str = "nn.Linear",
) -> None:
    """Raises ModelError where code of the model's hangs on a layer: hooks, as weight_norm has one, or a forward of its
    own. What stands for the layer would leave that out. `fix`: what else may be done about it."""
    altered = [f"{name} ({why})" for name, layer in layers.items() if (why := _why_altered(layer))]
    if altered:
        raise ModelError(
            f"{what}: {kind} that do more than their class says",
            where=where,
            expected=f"{expected} without hooks, and with the forward of its class",
            got=some(altered),
            fix=f"{fix}apply in the factory what the hooks do (remove_weight_norm, say)",
        )


def _why_altered(layer: nn.Module) -> str:
    if layer._forward_pre_hooks or layer._forward_hooks:
        return "it has hooks"
    return "its forward is replaced" if "forward" in vars(layer) else ""
