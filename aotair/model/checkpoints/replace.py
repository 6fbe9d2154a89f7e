"""Which linear layers of a model does a checkpoint hold quantised, and what serves each?"""

import torch
from torch import nn

from aotair_runtime.artifact.checkpoint import Checkpoint, some

from ...errors import ModelError
from ...log import logger
from ...target.target import Target
from ..replaceable import refuse_altered
from . import awq, compressed_tensors, gptq, msmodelslim, torchao
from .folder import Folder
from .layer import Layer, Quantisation, StoredLinear, Wanted

_METHODS = ("compressed-tensors", "gptq", "awq", "torchao")


def replace_quantised(model: nn.Module, checkpoint: Checkpoint, target: Target) -> bool:
    """Replace the linear layers that the checkpoint holds quantised by modules with tensors as it has them, in place;
    their values are still to be loaded. Gives whether there were any. Raises ModelError."""
    folder = Folder(checkpoint)
    found = _quantisation(folder, target)
    if found is None:
        return False
    names = list(dict.fromkeys(found.modules))
    linears = _linears(model)
    _refuse_others([name for name in names if name not in linears], model, folder)
    refuse_altered({name: linears[name] for name in names}, "model.weights", str(folder.path))
    _keep_unused(model, found, folder)
    for name in names:
        linear = linears[name]
        layer = found.layer(name, linear.out_features, linear.in_features)
        bias = _bias(name, linear, layer, folder)
        stored = StoredLinear(linear, bias, layer.scheme, _made(name, layer, folder), target)
        for path in [path for path, one in model.named_modules(remove_duplicate=False) if one is linear]:
            model.set_submodule(path, stored)
    return bool(names)


def refuse_wrong_values(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Raises ModelError where the values that a quantised layer has now mean nothing."""
    for name, module in model.named_modules():
        if isinstance(module, StoredLinear) and (fault := module.fault()):
            raise ModelError(
                f"model.weights: {name}: {fault}", where=str(checkpoint.path), fix="quantise the checkpoint again"
            )


def _quantisation(folder: Folder, target: Target) -> Quantisation | None:
    """What a folder says of its quantised layers; None where it says that none is."""
    fields = folder.quantization
    if (described := msmodelslim.read(folder, target)) is not None:
        return described
    if fields is None:
        return torchao.read(folder, target)
    method = fields.one_of("quant_method", _METHODS)
    if method == "compressed-tensors":
        return compressed_tensors.read(folder, fields, target)
    if method == "gptq":
        return gptq.read(folder, fields)
    if method == "awq":
        return awq.read(folder, fields)
    found = torchao.read(folder, target)
    if found is None:
        raise fields.refused("quant_method", "files of torchao's, whose headers describe the tensors")
    return found


def _linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers by the names that a checkpoint has for them: a model may rename its tensors."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module) is nn.Linear and path:
            mine = names.get(id(module.weight), [f"{path}.weight"])
            name = f"{path}.weight" if f"{path}.weight" in mine else mine[0]
            found[name.removesuffix(".weight")] = module
    return found


def _refuse_others(names: list[str], model: nn.Module, folder: Folder) -> None:
    """Raises ModelError where any modules are named."""
    modules = dict(model.named_modules())
    if names:
        kinds = [f"{name} ({type(modules[name]).__name__ if name in modules else 'not there'})" for name in names]
        raise ModelError(
            "model.weights: the checkpoint holds quantised weights of modules that are no linear layers of the model",
            where=str(folder.path),
            expected="nn.Linear by these names",
            got=some(kinds),
        )


def _made(name: str, layer: Layer, folder: Folder) -> dict[str, torch.Tensor]:
    """Empty tensors for a layer, of the dtypes and shapes that the checkpoint has."""
    made = {}
    for part, wanted in layer.tensors.items():
        kind, shape = folder.dtype(f"{name}.{part}"), folder.shape(f"{name}.{part}")
        if kind is None:
            raise folder.refused(name, f"the checkpoint lacks its {part}", _text(wanted))
        if kind not in wanted.dtypes or shape not in wanted.shapes:
            got = f"{str(kind).removeprefix('torch.')}{list(shape)}"
            raise folder.refused(name, f"its {part} does not fit the model's layer", _text(wanted), got)
        made[part] = torch.empty(shape, dtype=kind)
    return made


def _bias(name: str, linear: nn.Linear, layer: Layer, folder: Folder) -> nn.Parameter | None:
    """The bias of a layer: the model's, or one that the checkpoint alone has, as tools write zeros."""
    there = folder.shape(f"{name}.bias") == (linear.out_features,)
    if linear.bias is None and there:
        return nn.Parameter(linear.weight.new_empty(linear.out_features), requires_grad=False)
    return linear.bias if there or layer.adds_bias else None


def _text(wanted: Wanted) -> str:
    kinds = " or ".join(str(kind).removeprefix("torch.") for kind in wanted.dtypes)
    return f"{kinds} of shape {' or '.join(str(list(shape)) for shape in wanted.shapes)}"


def _keep_unused(model: nn.Module, found: Quantisation, folder: Folder) -> None:
    """Give modules the tensors that nobody uses, so that checkpoints fit by their names."""
    modules, kept = dict(model.named_modules()), []
    for full in found.unused:
        module, _, name = full.rpartition(".")
        if module in modules and not hasattr(modules[module], name):
            modules[module].register_buffer(name, torch.empty(folder.shape(full), dtype=folder.dtype(full)))
            kept.append(full)
    if kept:
        logger.warning("the scales of caches are not used, caches keep the model's dtype: %s", some(kept))
