"""Small checkpoints that the tools themselves quantise and write, and the model that they make of each in eager."""

import json
from pathlib import Path

import safetensors.torch
import torch
import transformers


def llama(seed: int = 0, dtype: torch.dtype = torch.float32, **more: object) -> torch.nn.Module:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    config = transformers.LlamaConfig(**(sizes | heads | more), use_cache=False)
    config._attn_implementation = "eager"
    return transformers.LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)


def logits(seed: int = 0) -> torch.nn.Module:
    """The same, taking ids and giving logits alone."""
    model = llama(seed)

    class Logits(type(model)):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(input_ids=ids).logits

    model.__class__ = Logits
    return model


def stack(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 40, bias=False)]
    return torch.nn.Sequential(*layers).to(dtype).eval().requires_grad_(False)


def written(model: torch.nn.Module, folder: Path, config: dict, headers: dict | None = None) -> Path:
    """A checkpoint of a model as it stands; of tied tensors it has the first."""
    folder.mkdir(parents=True, exist_ok=True)
    first = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in first.values()},
        folder / "model.safetensors",
        metadata=headers,
    )
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def headers_of(file: Path) -> dict[str, str] | None:
    """What the header of a file says beside the tensors."""
    with safetensors.safe_open(file, framework="pt") as handle:
        return handle.metadata()


# ---- compressed-tensors --------------------------------------------------------------------------------------------


def compress(model: torch.nn.Module, folder: Path, groups: dict[str, dict], ignore: list[str]) -> torch.nn.Module:
    """Quantise by compressed-tensors, write, and give what its own decompression makes of it."""
    from compressed_tensors.compressors import ModelCompressor, compress_module, decompress_module
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config

    asked = {"config_groups": groups, "ignore": ignore, "quantization_status": "initialized"}
    apply_quantization_config(model, QuantizationConfig.model_validate(asked))
    for module in model.modules():
        if (scheme := getattr(module, "quantization_scheme", None)) is not None:
            _calibrated(module, scheme)
            module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    for module in model.modules():
        compress_module(module)
    config = compressor.quantization_config.model_dump(mode="json") | {"quantization_status": "compressed"}
    written(model, folder, config)
    for module in model.modules():
        decompress_module(module)
    return model


def _calibrated(module: torch.nn.Module, scheme: object) -> None:
    """Scales and zero points of a layer, as an observer of least and largest values gives them."""
    from compressed_tensors.quantization.utils import calculate_qparams

    weights, weight = scheme.weights, module.weight.data
    if weights.strategy == "group":
        parts = weight.unflatten(1, (-1, weights.group_size))
        low, high = parts.amin(2), parts.amax(2)
    elif weights.strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    elif weights.strategy == "block":
        down, across = weights.block_structure
        weight = torch.nn.functional.pad(weight, (0, -weight.shape[1] % across, 0, -weight.shape[0] % down))
        parts = weight.reshape(weight.shape[0] // down, down, weight.shape[1] // across, across)
        low, high = parts.amin((1, 3)), parts.amax((1, 3))
    else:
        low, high = weight.amin().view(1), weight.amax().view(1)
    scale, zero = calculate_qparams(low, high, weights)
    module.weight_scale.data.copy_(scale)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero)
    inputs = scheme.input_activations
    if inputs is not None and not inputs.dynamic:
        scale, zero = calculate_qparams(torch.tensor([-2.5]), torch.tensor([3.0]), inputs)
        module.input_scale.data.copy_(scale)
        if hasattr(module, "input_zero_point"):
            module.input_zero_point.data.copy_(zero)


# ---- torchao -------------------------------------------------------------------------------------------------------


def by_torchao(model: torch.nn.Module, folder: Path, config: object) -> torch.nn.Module:
    """Quantise by torchao, write as transformers does, and give torchao's model."""
    from torchao.quantization import quantize_

    quantize_(model, config)
    save_torchao(model.state_dict(), folder)
    return model


def save_torchao(state: dict, folder: Path) -> None:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    plain = {name: value if type(value) is not torch.nn.Parameter else value.data for name, value in state.items()}
    tensors, headers = flatten_tensor_state_dict(plain)
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", **headers})
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "torchao"}}))
