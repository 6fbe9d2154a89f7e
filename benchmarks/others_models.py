"""Models of other libraries as they come: each factory makes one, small and seeded, from its library's own class."""

import contextlib

import torch
from torch import nn


def torchvision_first():
    """torchvision, without the ops of its extension where that is for another build of torch: no model here calls them,
    but the package refuses to be imported where they are not defined."""
    with contextlib.suppress(RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torchvision_first.library = library
    import torchvision

    return torchvision


def _shaken(model: nn.Module) -> nn.Module:
    """Every weight moved off its first value, and running statistics that are none: a lost term would show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dtype.is_floating_point:
                parameter.add_(torch.randn_like(parameter) * 0.01)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(torch.randn_like(buffer) * 0.1)
    return model.eval()


def vision(name: str, part: str = "", **options: object) -> nn.Module:
    """A model of torchvision.models, or of its `part`."""
    models = torchvision_first().models
    return _shaken(getattr(getattr(models, part) if part else models, name)(weights=None, **options))


def timm(name: str, **options: object) -> nn.Module:
    torchvision_first()
    import timm as library

    return _shaken(library.create_model(name, pretrained=False, **options))


def diffusers(name: str, **options: object) -> nn.Module:
    torchvision_first()
    import diffusers as library

    return _shaken(getattr(library, name)(**options))


def transformers(name: str, config: str = "", **options: object) -> nn.Module:
    """A model of transformers, with the config class of the same stem."""
    torchvision_first()  # which transformers imports where it is there
    import transformers as library

    stem = config or name.removesuffix("Model")
    made = getattr(library, f"{stem}Config")(**options)
    return _shaken(getattr(library, name)(made))


def layer(name: str, **options: object) -> nn.Module:
    """A layer of torch.nn itself."""
    return _shaken(getattr(nn, name)(**options))


def sequence() -> nn.Module:
    """An nn.Sequential, whose forward has an argument called `input`."""
    return _shaken(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 4)))
