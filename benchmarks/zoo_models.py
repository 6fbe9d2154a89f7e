"""Small seeded models of many architectures: each function makes one, with a forward that takes and gives tensors.

The builder seeds torch before it calls a factory. `shaken` moves every weight off its initial value: biases of zero,
norms of one and layer scales of 1e-6 would let a lost term go unseen.
"""

import torch
import transformers as tf
from torch import nn

VOCABULARY = 128
_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
_VISION = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}


class Text(nn.Module):
    """Token ids and mask, both (batch, seq), to hidden states or, where the model has a head, logits."""

    def __init__(self, model: nn.Module, **options):
        super().__init__()
        self.model, self.options = shaken(model), options

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **self.options)[0]


class RealText(Text):
    """Text with zeros where the mask is zero. These models let a token that is masked look at all others, padding too,
    so that what they give for it depends on the padding: with the original model as well."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids, attention_mask) * attention_mask[..., None]


class Ids(nn.Module):
    """Token ids (batch, seq) to logits, for models without attention."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = shaken(model)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids)[0]


class Pixels(nn.Module):
    """Images (batch, 3, height, width) to hidden states."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = shaken(model)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=pixel_values)[0]


class Sound(nn.Module):
    """Log-mel frames (batch, bins, frames) to hidden states."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = shaken(model)

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        return self.model(input_features=input_features)[0]


class Wave(nn.Module):
    """Raw audio (batch, samples) to hidden states."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = shaken(model)

    def forward(self, input_values: torch.Tensor) -> torch.Tensor:
        return self.model(input_values=input_values)[0]


class Translation(nn.Module):
    """Source ids, source mask and target ids to the target's logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = shaken(model)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        )[0]


def shaken(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model.eval()


# ---- encoders of text -------------------------------------------------------------------------------------------


def bert() -> nn.Module:
    return Text(tf.BertModel(tf.BertConfig(**_BERT)))


def distilbert() -> nn.Module:
    config = tf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=64
    )
    return Text(tf.DistilBertModel(config))


def roberta() -> nn.Module:
    return Text(tf.RobertaModel(tf.RobertaConfig(**_BERT)))


def electra() -> nn.Module:
    return Text(tf.ElectraModel(tf.ElectraConfig(**_BERT, embedding_size=32)))


def albert() -> nn.Module:
    return Text(tf.AlbertModel(tf.AlbertConfig(**_BERT, embedding_size=32)))


def mpnet() -> nn.Module:
    return Text(tf.MPNetModel(tf.MPNetConfig(**_BERT)))


def modernbert() -> nn.Module:
    options = {**_BERT, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    return Text(tf.ModernBertModel(tf.ModernBertConfig(**options, local_attention=8, global_attn_every_n_layers=2)))


def deberta() -> nn.Module:
    options = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "type_vocab_size": 0}
    return RealText(tf.DebertaV2Model(tf.DebertaV2Config(**_BERT, **options)))


def xlnet() -> nn.Module:
    config = tf.XLNetConfig(vocab_size=VOCABULARY, d_model=64, n_layer=2, n_head=4, d_inner=128, use_mems_eval=False)
    return Text(tf.XLNetModel(config))


def t5_encoder() -> nn.Module:
    config = tf.T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    return Text(tf.T5EncoderModel(config))


def clip_text() -> nn.Module:
    return Text(tf.CLIPTextModel(tf.CLIPTextConfig(**_BERT, bos_token_id=1, eos_token_id=2, pad_token_id=0)))


# ---- decoders, without a cache ----------------------------------------------------------------------------------


def gpt2() -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    config = tf.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, use_cache=False)
    return Text(tf.GPT2LMHeadModel(config))


def llama() -> nn.Module:
    return Text(tf.LlamaForCausalLM(tf.LlamaConfig(**_LLAMA)))


def qwen3() -> nn.Module:
    return Text(tf.Qwen3ForCausalLM(tf.Qwen3Config(**_LLAMA, head_dim=16)))


def qwen3_moe() -> nn.Module:
    options = {**_LLAMA, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**options))
    # The default calls an op of transformers' own, written in Python, which no node without transformers could run.
    model.set_experts_implementation("batched_mm")
    return Text(model)


def deepseek_v3() -> nn.Module:
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    options = {**_LLAMA, **ranks, **experts, "num_key_value_heads": 4, "first_k_dense_replace": 1}
    model = tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**options, moe_intermediate_size=32))
    model.set_experts_implementation("batched_mm")  # see qwen3_moe
    return Text(model)


def gpt_oss() -> nn.Module:
    options = {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8}
    model = tf.GptOssForCausalLM(tf.GptOssConfig(**options))
    model.set_experts_implementation("batched_mm")  # see qwen3_moe
    return Text(model)


def mistral() -> nn.Module:
    return Text(tf.MistralForCausalLM(tf.MistralConfig(**_LLAMA, sliding_window=8)))


def gemma2() -> nn.Module:
    return RealText(tf.Gemma2ForCausalLM(tf.Gemma2Config(**_LLAMA, head_dim=16, sliding_window=8)))


def gemma3() -> nn.Module:
    return Text(tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**_LLAMA, head_dim=16, sliding_window=8)))


def phi() -> nn.Module:
    return Text(tf.PhiForCausalLM(tf.PhiConfig(**_LLAMA)))


def falcon() -> nn.Module:
    options = {"num_hidden_layers": 2, "num_attention_heads": 4, "use_cache": False}
    return Text(tf.FalconForCausalLM(tf.FalconConfig(vocab_size=VOCABULARY, hidden_size=64, **options)))


def opt() -> nn.Module:
    options = {"ffn_dim": 128, "word_embed_proj_dim": 64, "use_cache": False, "max_position_embeddings": 64}
    config = tf.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, pad_token_id=1, **options
    )
    return Text(tf.OPTForCausalLM(config))


def gptj() -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8}
    return RealText(tf.GPTJForCausalLM(tf.GPTJConfig(**sizes, bos_token_id=1, eos_token_id=2, use_cache=False)))


def gpt_neox() -> nn.Module:
    return Text(tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**_BERT, use_cache=False)))


def bloom() -> nn.Module:
    config = tf.BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4, use_cache=False)
    return RealText(tf.BloomForCausalLM(config))


def mamba() -> nn.Module:
    config = tf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, state_size=8, use_cache=False, time_step_rank=4
    )
    return Ids(tf.MambaForCausalLM(config))


def mamba2() -> nn.Module:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "state_size": 8,
        "head_dim": 16,
        "num_heads": 8,
        "chunk_size": 8,
    }
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return Ids(tf.Mamba2ForCausalLM(tf.Mamba2Config(**sizes, **tokens, n_groups=1, use_cache=False)))


def bart() -> nn.Module:
    options = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64}
    return Translation(tf.BartForConditionalGeneration(tf.BartConfig(vocab_size=VOCABULARY, **options, **sizes)))


# ---- images and sound -------------------------------------------------------------------------------------------


def vit() -> nn.Module:
    return Pixels(tf.ViTModel(tf.ViTConfig(**_VISION)))


def deit() -> nn.Module:
    return Pixels(tf.DeiTModel(tf.DeiTConfig(**_VISION)))


def dinov2() -> nn.Module:
    return Pixels(tf.Dinov2Model(tf.Dinov2Config(**{**_VISION, "mlp_ratio": 2})))


def clip_vision() -> nn.Module:
    return Pixels(tf.CLIPVisionModel(tf.CLIPVisionConfig(**_VISION)))


def siglip_vision() -> nn.Module:
    return Pixels(tf.SiglipVisionModel(tf.SiglipVisionConfig(**_VISION)))


def convnext() -> nn.Module:
    return Pixels(tf.ConvNextModel(tf.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])))


def resnet() -> nn.Module:
    config = tf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], layer_type="basic")
    return Pixels(tf.ResNetModel(config))


def segformer() -> nn.Module:
    stages = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_attention_heads": [1, 2], "sr_ratios": [4, 2]}
    patches = {"patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
    return Pixels(tf.SegformerModel(tf.SegformerConfig(**stages, **patches, num_encoder_blocks=2)))


def swin() -> nn.Module:
    config = tf.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return Pixels(tf.SwinModel(config))


def whisper_encoder() -> nn.Module:
    config = tf.WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, num_mel_bins=16,
        max_source_positions=50, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=128,
    )  # fmt: skip
    return Sound(tf.WhisperModel(config).encoder)


def wav2vec2() -> nn.Module:
    config = tf.Wav2Vec2Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return Wave(tf.Wav2Vec2Model(config))
