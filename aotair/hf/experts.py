"""Which form do the experts of transformers' models get? That of `model.experts`, where they let one be chosen.

transformers' own forms either ask which experts have a token (`eager`), or read the weights of an expert once for each
token (`batched_mm`), or call an op that no node has (`grouped_mm`).
"""

from torch import nn

from ..model.experts import experts_forward

NAME = "aotair"


def serve(model: nn.Module) -> bool:
    """Let the experts of a model of transformers be computed by `experts_forward`; gives whether it has any that can.

    Models that have their experts in another form, such as Llama 4, keep it.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    switched = getattr(model, "set_experts_implementation", None)
    if switched is not None:
        switched(NAME)
    return any(hasattr(module, "is_transposed") and hasattr(module, "down_proj") for module in model.modules())
