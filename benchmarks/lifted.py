"""What of transformers' language models is lifted to NPU ops in float16: a table by model, and why the rest is not.

There is no peer: each number stands beside how often the model does it, counted while it runs.
"""

import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers as tf
from torch import nn

from aotair.builder import explain
from aotair.hf.experts import serve
from aotair.report.explain import Explained
from aotair_runtime.format.text import table

from .common import options

LAYERS = 4
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WIDTH = {"head_dim": 16}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
}
_FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GROUPS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
_GROUPS |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
# The configuration's class, and what is not as in `_SIZES`.
MODELS: dict[str, dict[str, object]] = {
    "Llama": {},
    "Mistral": {},
    "Qwen2": {},
    "Qwen3": _WIDTH,
    "Qwen3Moe": _ROUTED | _WIDTH,
    "Mixtral": _FEW,
    "Gemma2": _WIDTH,
    "Gemma3Text": _WIDTH,
    "Phi3": {},
    "Olmo2": {},
    "Olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "Granite": {},
    "GraniteMoe": _FEW,
    "Glm4": _WIDTH,
    "Glm4Moe": _GROUPS | _WIDTH,
    "Cohere2": _WIDTH,
    "SmolLM3": {},
    "GptOss": _FEW | _WIDTH | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "DeepseekV2": _LATENT | _GROUPS | {"topk_method": "group_limited_greedy"},
    "DeepseekV3": _LATENT | _GROUPS,
}
# What of a model's attention torch's own lacks: it is written out.
OWN_ATTENTION = {"GptOss": "attention with sinks", "Gemma2": "attention with soft caps"}
# What a model does where no op of the NPU does the same, by kind and model.
OWN = {("attention", name): f"{text} is written out: no op is it" for name, text in OWN_ATTENTION.items()} | {
    (
        "sums",
        "Olmo2",
    ): "what is added is normed before: of the sums only the last one, which is lifted, is normed itself",
    ("sums", "Cohere2"): "the mean of the sum is taken off before it is normed: npu_add_rms_norm takes off none",
    ("gates", "GptOss"): "the gate and what it lets through are clamped, and 1 is added: npu_swiglu does neither",
}
# By kind: the rules that lift it.
KINDS = {
    "norms": ("lift_rms_norm",),
    "sums": ("lift_add_rms_norm",),
    "rotations": ("lift_rotary",),
    "gates": ("lift_swiglu",),
    "attention": ("lift_attention",),
    "experts": ("lift_gating", "lift_routing"),
}
_PARTS = 3  # of experts: the router, the way there, the sum


class Logits(nn.Module):
    """Token ids and mask, both (batch, seq), to logits."""

    def __init__(self, name: str):
        super().__init__()
        config = getattr(tf, f"{name}Config")(**_SIZES | MODELS[name])
        attention = "eager" if name in OWN_ATTENTION else "sdpa"
        self.model = tf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        serve(self.model)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", help="one of the models")
    given = parser.parse_args()
    found = {}
    for name in MODELS:
        if given.only in (None, name):
            found[name] = _found(name)
            print(name, found[name].kinds, flush=True)
    cells = [[name, *(_cell(one.kinds[kind]) for kind in KINDS)] for name, one in found.items()]
    print(table(["model", *KINDS], cells), flush=True)
    for name, one in found.items():
        for reason, times in one.reasons.items():
            print(f"{name}: {times} x {reason}")
    if given.json:
        plain = {name: {"kinds": one.kinds, "reasons": dict(one.reasons)} for name, one in found.items()}
        Path(given.json).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _Found:
    """By kind how often it was lifted, and how often there is one; and why what is left was left, with how often."""

    kinds: dict[str, tuple[int, int]]
    reasons: Counter[str]


def _found(name: str) -> _Found:
    asked = {
        "name": name.lower(),
        "model": {"factory": f"{__file__}:Logits", "kwargs": {"name": name}, "dtype": "float16"},
        "inputs": {
            "input_ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 64], "pad": 0},
            "attention_mask": {"shape": ["batch", "seq"], "dtype": "int64", "range": [1, 2], "pad": 0},
        },
        "buckets": {"batch": [2], "seq": [16]},
        "target": {"device": "npu"},
    }
    explained, counted = explain(asked), _counted(name)
    done = explained.counts()
    kinds = {kind: (sum(done[rule][0] for rule in rules), counted[kind]) for kind, rules in KINDS.items()}
    reasons: Counter[str] = Counter()
    for kind, rules in KINDS.items():
        if kinds[kind][0] < kinds[kind][1]:
            own = f"{kind}: {OWN[kind, name]}" if (kind, name) in OWN else ""
            reasons.update([own] if own else _reasons(explained, kind, rules))
    return _Found(kinds, reasons)


def _reasons(explained: Explained, kind: str, rules: tuple[str, ...]) -> Iterator[str]:
    told = [left for rule in rules for left in explained.as_dict(rule)[rule]["left"]]
    for left in told:
        yield f"{kind}: {re.sub(r'_[0-9]+', '', left['reason'])}"
    if not told:
        yield f"{kind}: written as no rule knows it"


def _cell(lifted: tuple[int, int]) -> str:
    return f"{lifted[0]} of {lifted[1]}" if lifted[1] else "-"


# ---- what a model does -----------------------------------------------------------------------------------------------


def _counted(name: str) -> Counter[str]:
    """By kind how often the model does it in one call."""
    model, seen = Logits(name).eval(), Counter({"sums": 2 * LAYERS, "attention": LAYERS})
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("Norm"):
            module.register_forward_pre_hook(lambda *_: seen.update(["norms"]))
        elif kind.endswith("Experts"):
            module.register_forward_pre_hook(lambda *_: seen.update({"experts": _PARTS, "gates": 1}))
        elif kind.endswith("MLP") and (hasattr(module, "gate_proj") or hasattr(module, "gate_up_proj")):
            module.register_forward_pre_hook(lambda *_: seen.update(["gates"]))
    ids = torch.ones(2, 16, dtype=torch.int64)
    with torch.no_grad(), _rotations(sys.modules[type(model.model).__module__], seen):
        model(ids, ids)
    return seen


@contextlib.contextmanager
def _rotations(module: object, seen: Counter[str]) -> Iterator[None]:
    """Within: each call of a function that turns queries and keys counts as two."""
    names = [name for name in vars(module) if name.startswith("apply_rotary")]
    kept = {name: getattr(module, name) for name in names}

    def counting(function):
        def call(*args, **kwargs):
            seen.update({"rotations": 2})
            return function(*args, **kwargs)

        return call

    try:
        for name, function in kept.items():
            setattr(module, name, counting(function))
        yield
    finally:
        for name, function in kept.items():
            setattr(module, name, function)


if __name__ == "__main__":
    main()
