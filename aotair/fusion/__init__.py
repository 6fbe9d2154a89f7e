"""RULES: every fusion rule of aotair's own in order, with the reason for its place. This list is the documentation."""

from .register import register_replacement, registered, rules_of
from .rule import Rule
from .rules import (
    add_rms_norm_cast,
    add_rms_norm_dynamic_quant,
    add_rms_norm_flatten_dynamic_quant,
    add_rms_norm_quant,
    all_gather_mm,
    group_attention,
    lift_add_rms_norm,
    lift_attention,
    lift_gating,
    lift_rms_norm,
    lift_rotary,
    lift_routing,
    lift_swiglu,
    mm_all_reduce,
    mm_reduce_scatter,
    transpose_batchmatmul,
)

RULES: tuple[Rule, ...] = (
    # First what raises plain PyTorch to npu ops: the rules after it look for those.
    lift_rms_norm.RULE,
    # After the norms: the addition before one becomes a part of it.
    lift_add_rms_norm.RULE,
    lift_swiglu.RULE,
    lift_rotary.RULE,
    lift_attention.RULE,
    lift_gating.RULE,
    # After the gates, whose experts it takes as they are.
    lift_routing.RULE,
    # TorchAir's, in its order. What is most specific comes first: the flattened form before the plain one would leave
    # nothing for it, but neither matches what the other does.
    add_rms_norm_dynamic_quant.RULE,
    add_rms_norm_flatten_dynamic_quant.RULE,
    add_rms_norm_cast.RULE,
    transpose_batchmatmul.RULE,
    add_rms_norm_quant.RULE,
    # Products that meet other ranks: nothing else looks for what they take.
    mm_all_reduce.RULE,
    mm_reduce_scatter.RULE,
    all_gather_mm.RULE,
    # For the CPU, where the others do not run.
    group_attention.RULE,
)

__all__ = ["RULES", "Rule", "register_replacement", "registered", "rules_of"]
