"""Small seeded mixtures of experts of transformers, as whole models: ids and mask (batch, seq) to logits; recipes for
them; and experts alone."""

import torch
from cases import ROOT
from torch import nn

from aotair_runtime.artifact.open import read_program

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
_FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GROUPS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
# By name: the configuration's class, and what of it is not as in `_SIZES`.
CONFIGS: dict[str, tuple[str, dict[str, object]]] = {
    "mixtral": ("Mixtral", _FEW),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "head_dim": 16,
            "norm_topk_prob": True,
        },
    ),
    "granitemoe": ("GraniteMoe", _FEW),
    "glm4_moe": ("Glm4Moe", _GROUPS | {"head_dim": 16}),
    "deepseek_v2": ("DeepseekV2", _LATENT | _GROUPS | {"topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("DeepseekV3", _LATENT | _GROUPS),
    "gpt_oss": (
        "GptOss",
        _FEW
        | {"head_dim": 16, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "llama4": (
        "Llama4Text",
        {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 48, "head_dim": 16}
        | {"interleave_moe_layer_step": 1, "attention_chunk_size": 8},
    ),
    "jamba": (
        "Jamba",
        {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"expert_layer_period": 2, "expert_layer_offset": 0, "mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
}
# Whose experts transformers lets nobody choose the form of.
OWN_FORM = frozenset({"llama4"})


def _sizes(name: str, layers: int) -> dict[str, object]:
    """Of so many first layers; a single one has experts where of two the first would have none."""
    made = _SIZES | CONFIGS[name][1] | {"num_hidden_layers": layers}
    if "layer_types" in made:
        made["layer_types"] = made["layer_types"][:layers]
    if "first_k_dense_replace" in made:
        made["first_k_dense_replace"] = min(made["first_k_dense_replace"], layers - 1)
    return made


class Mixture(nn.Module):
    """`experts`: the form of its experts, one of transformers', or that of `aotair.hf.experts`."""

    def __init__(self, name: str, experts: str = "aotair", seed: int = 0, layers: int = 2):
        import transformers

        from aotair.hf.experts import serve

        super().__init__()
        config = getattr(transformers, f"{CONFIGS[name][0]}Config")(**_sizes(name, layers))
        torch.manual_seed(seed)
        attention = "eager" if name == "gpt_oss" else "sdpa"
        self.model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        if experts == "aotair":
            serve(self.model)
        else:
            self.model.set_experts_implementation(experts)
        with torch.no_grad():
            for key, weight in self.model.named_parameters():
                if not key.endswith("A_log"):  # exp of it is a decay: it stays where a state fades
                    weight.add_(torch.randn_like(weight), alpha=0.1)
            for key, buffer in self.model.named_buffers():
                if key.endswith("correction_bias"):
                    buffer.add_(torch.randn_like(buffer), alpha=0.1)
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]


IDS = {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 64], "pad": 0}
MASK = {"shape": ["batch", "seq"], "dtype": "int64", "range": [1, 2], "pad": 0}


def recipe(name: str, **model: object) -> dict:
    return {
        "name": name,
        "model": {"factory": f"{ROOT}/tests/mixtures.py:Mixture", "kwargs": {"name": name} | model},
        "inputs": {"input_ids": IDS, "attention_mask": MASK},
        "buckets": {"batch": [2], "seq": [4, 8]},
        "verify": {"atol": 1e-4, "rtol": 1e-4},
    }


def ops(path) -> set[str]:
    return {op.name for op in read_program(path).ops}


class Experts(nn.Module):
    """What transformers' decorator leaves on a class of experts."""

    has_bias, has_gate, is_transposed, has_post_expert_norm, num_experts = True, True, False, False, 0
    _is_expert_parallel = False

    def __init__(
        self, number: int, transposed: bool, dtype: torch.dtype = torch.float32, width: int = 5, inner: int = 4
    ):
        super().__init__()
        self.num_experts, self.is_transposed = number, transposed
        for name, (out, into) in {"gate_up_proj": (2 * inner, width), "down_proj": (width, inner)}.items():
            weight = torch.randn(number, out, into)
            self.register_parameter(name, nn.Parameter((weight.mT.contiguous() if transposed else weight).to(dtype)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(number, out).to(dtype)))

    def _apply_gate(self, both):
        gate, up = both.chunk(2, -1)
        return torch.tanh(gate) * up
