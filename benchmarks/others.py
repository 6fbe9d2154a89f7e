"""Builds, proves and replays models that were not chosen for this project, of timm, torchvision, diffusers, transformers
and torch.nn: each is right beside the original on fresh inputs, or refused with what to do, and never a traceback.

The libraries are the peers' own: `pip install 'aotair[others]'`.
"""

import argparse
import json
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import aotair
from aotair.original import Original
from aotair.recipe import parse_recipe
from aotair.samples import random_inputs
from aotair.source import load_model
from aotair_runtime.golden import compare
from aotair_runtime.text import table

from .others_models import VOCABULARY

_FRESH = 1_000_000  # a stream of random numbers that the build does not draw its own inputs from
_IDS = {"shape": ["b", "s"], "dtype": "int64", "range": [3, VOCABULARY]}
_MASK = {"shape": ["b", "s"], "dtype": "int64", "range": [1, 2]}
_TEXT = {"b": [1, 3], "s": [8, 20]}
_BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
_CAUSAL = {**_BERT, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}


@dataclass(frozen=True)
class Case:
    """A model: the factory and its arguments, its inputs and buckets."""

    factory: str
    kwargs: dict
    inputs: dict
    buckets: dict


@dataclass(frozen=True)
class Result:
    """`outcome`: right, wrong, refused or traceback. `error`: the largest against the original; `says` what came."""

    name: str
    outcome: str
    seconds: float
    error: float = 0.0
    graphs: int = 1
    says: str = ""


def _float(*shape: object, **more: object) -> dict:
    return {"shape": list(shape), "dtype": "float32", **more}


def _images(size: int, name: str = "x", channels: int = 3) -> tuple[dict, dict]:
    return {name: _float("b", channels, size, size)}, {"b": [1, 3]}


def _any_size(*sizes: int, name: str = "x", channels: int = 3) -> tuple[dict, dict]:
    return {name: _float("b", channels, "h", "w")}, {"b": [1, 2], "h": list(sizes), "w": list(sizes)}


CASES: dict[str, Case] = {}


def _add(name: str, factory: str, kwargs: dict, inputs: dict, buckets: dict) -> None:
    CASES[name] = Case(factory, kwargs, inputs, buckets)


# ---- torchvision ----------------------------------------------------------------------------------------------------

for _name, _size in {
    "alexnet": 64, "vgg11_bn": 32, "squeezenet1_1": 64, "densenet121": 32, "mobilenet_v2": 32, "mobilenet_v3_small": 32,
    "shufflenet_v2_x0_5": 32, "efficientnet_b0": 32, "regnet_y_400mf": 32, "mnasnet0_5": 32, "resnext50_32x4d": 32,
    "swin_v2_t": 64, "maxvit_t": 224,
}.items():  # fmt: skip
    _add(f"torchvision {_name}", "vision", {"name": _name}, *_images(_size))
_add("torchvision googlenet", "vision", {"name": "googlenet", "aux_logits": False, "init_weights": False}, *_images(64))
_add("torchvision fcn", "vision", {"name": "fcn_resnet50", "part": "segmentation", "weights_backbone": None},
     *_any_size(64, 96))  # fmt: skip
_add("torchvision deeplab", "vision",
     {"name": "deeplabv3_mobilenet_v3_large", "part": "segmentation", "weights_backbone": None}, *_any_size(64, 96))  # fmt: skip
_add("torchvision lraspp", "vision",
     {"name": "lraspp_mobilenet_v3_large", "part": "segmentation", "weights_backbone": None}, *_any_size(64, 96))  # fmt: skip
_add("torchvision r3d", "vision", {"name": "r3d_18", "part": "video"},
     {"x": _float("b", 3, "t", 32, 32)}, {"b": [1, 2], "t": [4, 8]})  # fmt: skip
_add("torchvision raft", "vision", {"name": "raft_small", "part": "optical_flow"},
     {"image1": _float("b", 3, 128, 128), "image2": _float("b", 3, 128, 128)}, {"b": [1, 2]})  # fmt: skip

# ---- timm -----------------------------------------------------------------------------------------------------------

for _name, _size in {
    "resnet10t": 64, "mobilenetv4_conv_small": 64, "efficientformer_l1": 224, "edgenext_xx_small": 64, "fastvit_t8": 64,
    "levit_128s": 224, "mobilevit_xxs": 64, "mobileone_s0": 64, "poolformer_s12": 64, "pvt_v2_b0": 64, "repvgg_a0": 64,
    "rexnet_100": 64, "twins_pcpvt_small": 224, "visformer_tiny": 224, "xcit_nano_12_p16_224": 224, "coat_tiny": 224,
    "crossvit_tiny_240": 240, "dpn48b": 64, "ese_vovnet19b_dw": 64, "ghostnet_100": 64, "gmixer_12_224": 224,
    "inception_next_atto": 64, "lcnet_050": 64, "mambaout_femto": 64, "mixer_s32_224": 224, "res2net50_14w_8s": 64,
    "resmlp_12_224": 224, "resnest14d": 64, "sequencer2d_s": 224, "skresnet18": 64, "starnet_s1": 64,
    "tiny_vit_5m_224": 224, "volo_d1_224": 224, "eva02_tiny_patch14_224": 224, "beit_base_patch16_224": 224,
    "cait_xxs24_224": 224, "davit_tiny": 64, "focalnet_tiny_srf": 64, "gcvit_xxtiny": 224, "hiera_tiny_224": 224,
    "nest_tiny": 224, "nextvit_small": 64, "pit_ti_224": 224, "swiftformer_xs": 224, "convit_tiny": 224,
    "repghostnet_050": 64, "gcresnet33ts": 64, "tf_efficientnetv2_b0": 64,
}.items():  # fmt: skip
    _add(f"timm {_name}", "timm", {"name": _name}, *_images(_size))
_add("timm convnext_atto, any size", "timm", {"name": "convnext_atto"}, *_any_size(64, 96))
_add("timm vit_tiny, any size", "timm", {"name": "vit_tiny_patch16_224", "dynamic_img_size": True}, *_any_size(64, 96))

# ---- diffusers ------------------------------------------------------------------------------------------------------

_STEP = {"shape": ["b"], "dtype": "int64", "range": [0, 1000]}
_BLOCKS = {"block_out_channels": [16, 32], "norm_num_groups": 8, "layers_per_block": 1}
_LATENT = {"b": [1, 2], "h": [16, 24], "w": [16, 24]}
_add("diffusers UNet2D", "diffusers",
     {"name": "UNet2DModel", "sample_size": 16, **_BLOCKS, "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
      "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]},
     {"sample": _float("b", 3, "h", "w"), "timestep": _STEP}, _LATENT)  # fmt: skip
_add("diffusers UNet2DCondition", "diffusers",
     {"name": "UNet2DConditionModel", "sample_size": 16, **_BLOCKS, "cross_attention_dim": 32, "attention_head_dim": 8,
      "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
      "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]},
     {"sample": _float("b", 4, "h", "w"), "timestep": _STEP, "encoder_hidden_states": _float("b", "s", 32)},
     {**_LATENT, "s": [8]})  # fmt: skip
_add("diffusers AutoencoderKL", "diffusers",
     {"name": "AutoencoderKL", **_BLOCKS, "down_block_types": ["DownEncoderBlock2D"] * 2,
      "up_block_types": ["UpDecoderBlock2D"] * 2}, *_any_size(32, 48, name="sample"))  # fmt: skip
_add("diffusers AutoencoderTiny", "diffusers", {"name": "AutoencoderTiny", "encoder_block_out_channels": [16] * 4,
     "decoder_block_out_channels": [16] * 4}, *_any_size(32, 48, name="sample"))  # fmt: skip
_add("diffusers VQModel", "diffusers", {"name": "VQModel", **_BLOCKS, "down_block_types": ["DownEncoderBlock2D"] * 2,
     "up_block_types": ["UpDecoderBlock2D"] * 2, "num_vq_embeddings": 16}, *_any_size(32, 48, name="sample"))  # fmt: skip
_add("diffusers UNet1D", "diffusers",
     {"name": "UNet1DModel", "sample_size": 64, "in_channels": 14, "out_channels": 14, "block_out_channels": [8, 8, 16],
      "extra_in_channels": 16, "norm_num_groups": 4} | {"norm_num_groups": None},
     {"sample": _float("b", 14, 64), "timestep": _STEP}, {"b": [1, 2]})  # fmt: skip
CASES["diffusers UNet1D"].kwargs.pop("norm_num_groups")
_add("diffusers DiT", "diffusers",
     {"name": "DiTTransformer2DModel", "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
      "num_layers": 2, "sample_size": 8, "num_embeds_ada_norm": 8, "norm_num_groups": 4},
     {"hidden_states": _float("b", 4, 8, 8), "timestep": _STEP,
      "class_labels": {"shape": ["b"], "dtype": "int64", "range": [0, 8]}}, {"b": [1, 2]})  # fmt: skip
_add("diffusers PixArt", "diffusers",
     {"name": "PixArtTransformer2DModel", "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
      "out_channels": 8, "num_layers": 2, "sample_size": 8, "cross_attention_dim": 16, "caption_channels": 16},
     {"hidden_states": _float("b", 4, 8, 8), "timestep": _STEP, "encoder_hidden_states": _float("b", 6, 16)},
     {"b": [1, 2]})  # fmt: skip
_add("diffusers SD3", "diffusers",
     {"name": "SD3Transformer2DModel", "sample_size": 16, "num_layers": 2, "attention_head_dim": 8,
      "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 16,
      "in_channels": 4, "out_channels": 4},
     {"hidden_states": _float("b", 4, 16, 16), "encoder_hidden_states": _float("b", 6, 32),
      "pooled_projections": _float("b", 16), "timestep": _STEP}, {"b": [1, 2]})  # fmt: skip
_add("diffusers Flux", "diffusers",
     {"name": "FluxTransformer2DModel", "in_channels": 8, "num_layers": 1, "num_single_layers": 1,
      "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 16, "pooled_projection_dim": 8,
      "axes_dims_rope": [4, 4, 8]},
     {"hidden_states": _float("b", 16, 8), "encoder_hidden_states": _float("b", 6, 16),
      "pooled_projections": _float("b", 8), "timestep": _float("b", range=[0, 1]), "img_ids": _float(16, 3, range=[0, 4]),
      "txt_ids": _float(6, 3, range=[0, 1])}, {"b": [1, 2]})  # fmt: skip
_add("diffusers T2IAdapter", "diffusers", {"name": "T2IAdapter", "channels": [16, 32], "num_res_blocks": 1,
     "downscale_factor": 8}, *_any_size(64, 96))  # fmt: skip
_add("diffusers Prior", "diffusers",
     {"name": "PriorTransformer", "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
      "embedding_dim": 16, "num_embeddings": 7, "additional_embeddings": 4},
     {"hidden_states": _float("b", 16), "timestep": _STEP, "proj_embedding": _float("b", 16),
      "encoder_hidden_states": _float("b", 7, 16)}, {"b": [1, 2]})  # fmt: skip

# ---- transformers ---------------------------------------------------------------------------------------------------

_BOTH = {"input_ids": _IDS, "attention_mask": _MASK}
for _name, _more in {
    "ConvBertModel": {"embedding_size": 32, "conv_kernel_size": 3}, "MobileBertModel": {"embedding_size": 32,
    "intra_bottleneck_size": 32, "trigram_input": True}, "NystromformerModel": {"segment_means_seq_len": 64,
    "num_landmarks": 4}, "RoFormerModel": {"embedding_size": 32}, "SqueezeBertModel": {}, "ErnieModel": {},
    "LayoutLMModel": {}, "MegatronBertModel": {}, "CamembertModel": {}, "EsmModel": {"pad_token_id": 0,
    "mask_token_id": 1, "position_embedding_type": "rotary"}, "MraModel": {}, "RemBertModel": {"input_embedding_size":
    32, "output_embedding_size": 32}, "SplinterModel": {},
}.items():  # fmt: skip
    _add(f"transformers {_name}", "transformers", {"name": _name, **_BERT, **_more}, _BOTH, _TEXT)
_add("transformers FNetModel", "transformers", {"name": "FNetModel", **_BERT}, {"input_ids": _IDS}, _TEXT)
_add("transformers FunnelModel", "transformers", {"name": "FunnelModel", "vocab_size": VOCABULARY, "d_model": 32,
     "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1, 1], "num_decoder_layers": 1}, _BOTH, _TEXT)  # fmt: skip
for _name, _more in {
    "OlmoModel": {}, "Olmo2Model": {}, "CohereModel": {}, "GraniteModel": {}, "Phi3Model": {}, "StableLmModel": {},
    "Starcoder2Model": {}, "PersimmonModel": {}, "NemotronModel": {}, "GlmModel": {"head_dim": 8}, "SmolLM3Model": {},
    "Exaone4Model": {}, "MixtralModel": {"num_local_experts": 4}, "OlmoeModel": {"num_experts": 4,
    "num_experts_per_tok": 2}, "GraniteMoeModel": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "JambaModel": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False,
    "mamba_d_state": 4, "mamba_dt_rank": 4}, "Qwen3NextModel": {"num_experts": 4, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": 8, "num_experts_per_tok": 2},
    "Lfm2Model": {"layer_types": ["conv", "full_attention"]}, "RecurrentGemmaModel": {"lru_width": 32,
    "attention_window_size": 16, "head_dim": 8}, "HeliumModel": {"head_dim": 8}, "BambaModel": {"attn_layer_indices": [1],
    "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_d_state": 8, "mamba_n_groups": 1},
}.items():  # fmt: skip
    _add(f"transformers {_name}", "transformers", {"name": _name, **_CAUSAL, **_more}, _BOTH, _TEXT)
for _name, _stem, _more in (
    ("BeitModel", "Beit", {}), ("DPTModel", "DPT", {}), ("YolosModel", "Yolos", {}), ("Swinv2Model", "Swinv2",
    {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}), ("PoolFormerModel", "PoolFormer",
    {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}), ("RegNetModel", "RegNet", {"embedding_size": 8,
    "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8}), ("MobileViTModel", "MobileViT",
    {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]}), ("GLPNModel", "GLPN",
    {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}),
):  # fmt: skip
    _size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    _size = {} if _more else {**_size, "image_size": [64, 64] if _name == "YolosModel" else 64, "patch_size": 16}
    _size |= {"backbone_out_indices": [0, 1, 1, 1]} if _name == "DPTModel" else {}
    _size |= {"image_size": 64} if _name == "Swinv2Model" else {}
    _kwargs = {"name": _name, "config": _stem, **_size, **_more}
    _add(f"transformers {_name}", "transformers", _kwargs, *_images(64, "pixel_values"))
_add("transformers HubertModel", "transformers",
     {"name": "HubertModel", **{k: v for k, v in _BERT.items() if k != "max_position_embeddings"}, "conv_dim": [16, 16],
      "conv_stride": [4, 2], "conv_kernel": [8, 3], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
      "num_conv_pos_embedding_groups": 4}, {"input_values": _float("b", 400)}, {"b": [1, 3]})  # fmt: skip
_add("transformers EncodecModel encoder", "transformers",
     {"name": "EncodecModel", "num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16},
     {"input_values": _float("b", 1, 640)}, {"b": [1, 2]})  # fmt: skip
_add("transformers VitsModel", "transformers", {"name": "VitsModel", "vocab_size": VOCABULARY, "hidden_size": 16,
     "num_hidden_layers": 1, "ffn_dim": 16, "flow_size": 16, "upsample_initial_channel": 16, "spectrogram_bins": 9},
     {"input_ids": _IDS}, _TEXT)  # fmt: skip
_add("transformers PatchTST", "transformers",
     {"name": "PatchTSTModel", "num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8,
      "d_model": 16, "num_attention_heads": 2, "ffn_dim": 32, "num_hidden_layers": 2},
     {"past_values": _float("b", 32, 3)}, {"b": [1, 3]})  # fmt: skip

# ---- torch.nn itself ------------------------------------------------------------------------------------------------

_TIME = ["b", "t", 16]
_ALONG = {"b": [1, 3], "t": [4, 9]}
for _name, _kwargs, _inputs, _buckets in (
    ("Linear", {"in_features": 16, "out_features": 8}, {"input": _float("b", 16)}, {"b": [1, 4]}),
    ("LSTM", {"input_size": 16, "hidden_size": 8, "batch_first": True}, {"input": _float(*_TIME)}, _ALONG),
    ("GRU", {"input_size": 16, "hidden_size": 8, "batch_first": True}, {"input": _float(*_TIME)}, _ALONG),
    ("TransformerEncoderLayer", {"d_model": 16, "nhead": 4, "batch_first": True}, {"src": _float(*_TIME)}, _ALONG),
    ("Transformer", {"d_model": 16, "nhead": 4, "num_encoder_layers": 1, "num_decoder_layers": 1, "batch_first": True},
     {"src": _float(*_TIME), "tgt": _float("b", "u", 16)}, {**_ALONG, "u": [3, 5]}),
    ("MultiheadAttention", {"embed_dim": 16, "num_heads": 4, "batch_first": True},
     {"query": _float(*_TIME), "key": _float("b", "u", 16), "value": _float("b", "u", 16)}, {**_ALONG, "u": [3, 5]}),
    ("Conv3d", {"in_channels": 2, "out_channels": 4, "kernel_size": 3}, {"input": _float("b", 2, "t", 8, 8)}, _ALONG),
    ("ConvTranspose2d", {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "stride": 2},
     {"input": _float("b", 2, "h", "w")}, {"b": [1, 2], "h": [8, 11], "w": [7, 9]}),
    ("EmbeddingBag", {"num_embeddings": 16, "embedding_dim": 8},
     {"input": {"shape": ["b", 5], "dtype": "int64", "range": [0, 16]}}, {"b": [1, 3]}),
    ("Bilinear", {"in1_features": 8, "in2_features": 6, "out_features": 4},
     {"input1": _float("b", 8), "input2": _float("b", 6)}, {"b": [1, 3]}),
    ("PixelShuffle", {"upscale_factor": 2}, {"input": _float("b", 8, "h", 6)}, {"b": [1, 2], "h": [4, 5]}),
    ("Upsample", {"scale_factor": 2, "mode": "bicubic"}, *_any_size(8, 12, name="input")),
    ("AdaptiveAvgPool2d", {"output_size": 3}, *_any_size(8, 12, name="input")),
    ("Fold", {"output_size": [6, 6], "kernel_size": [2, 2]}, {"input": _float("b", 8, 25)}, {"b": [1, 2]}),
    ("LocalResponseNorm", {"size": 2}, *_any_size(8, 12, name="input")),
):  # fmt: skip
    _add(f"torch.nn {_name}", "layer", {"name": _name, **_kwargs}, _inputs, _buckets)
_add("torch.nn Sequential", "sequence", {}, {"input": _float("b", 8)}, {"b": [1, 4]})


def recipe(name: str) -> dict:
    case = CASES[name]
    plain = "".join(c if c.isalnum() else "_" for c in name)
    return {
        "name": plain,
        "model": {"factory": f"benchmarks.others_models:{case.factory}", "kwargs": case.kwargs},
        "inputs": case.inputs,
        "buckets": case.buckets,
        "verify": {"atol": 1e-4, "rtol": 1e-3},
    }


def tried(name: str, folder: Path) -> Result:
    """Build one model, load it, and compare every bucket with the original on fresh inputs."""
    start, parsed = time.perf_counter(), parse_recipe(recipe(name))
    try:
        path = aotair.build(parsed, folder / f"{parsed.name}.aotair")
        worst, right = _compared(parsed, path)
    except aotair.AotairError as error:
        return Result(name, "refused", time.perf_counter() - start, says=str(error))
    except Exception:
        return Result(name, "traceback", time.perf_counter() - start, says=traceback.format_exc()[-1500:])
    return Result(name, "right" if right else "wrong", time.perf_counter() - start, worst)


def _compared(parsed, path: Path) -> tuple[float, bool]:
    original, worst, right = Original(load_model(parsed), parsed), 0.0, True
    with aotair.load(path, enable_output_clone=True) as model:
        for number, sizes in enumerate(parsed.bucket_sizes()):
            inputs = random_inputs(parsed, dict(zip(parsed.dims(), sizes)), _FRESH + number)
            got = model.forward.flat([inputs[spec.name] for spec in model.forward.spec.inputs])
            for mine, theirs in zip(got, original(inputs), strict=True):
                error, within = compare(mine, theirs, 1e-4, 1e-3)
                worst, right = max(worst, error), right and within
    return worst, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="parts of the names of models  [all]")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--part", default="1/1", help="which share of the models: 1/2, 2/2")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    names = [name for name in CASES if not given.only or any(word in name for word in given.only)][part - 1 :: parts]
    torch.set_num_threads(1)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            results.append(tried(name, Path(folder)))
            first = results[-1].says.strip().splitlines()
            print(f"{name}: {results[-1].outcome}, {results[-1].seconds:.1f} s", *first[:4], sep="\n    ", flush=True)
    outcomes = {
        outcome: sum(r.outcome == outcome for r in results) for outcome in ("right", "refused", "wrong", "traceback")
    }
    print(f"\n{table(['models', *outcomes], [[str(len(results)), *map(str, outcomes.values())]])}")
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
