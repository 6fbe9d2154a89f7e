"""Tensors that a model changes although they are neither inputs nor registered buffers: found, and refused by name.

torch.export takes such a tensor for a constant: what a call writes there is refused without its name, or lost.
"""

import inspect
from collections.abc import Iterator

import torch

from .aliases import overlap, shared_memory
from .errors import ModelError, UnsupportedError
from .original import Original
from .recipe import Recipe
from .samples import random_inputs

_DEPTH = 6  # attributes of attributes


def refuse_hidden_state(model: torch.nn.Module, recipe: Recipe) -> None:
    """Raises UnsupportedError where a call of the entry point leaves such a tensor with another value, and ModelError
    where the call itself fails.

    Two calls are made: what the first one makes and the second one leaves alone is a constant made late.
    """
    original, seen = Original(model, recipe), {}
    inputs = random_inputs(recipe, dict(zip(recipe.dims(), recipe.bucket_sizes()[0])), 0)
    for _ in range(2):
        before = seen
        try:
            original({name: tensor.clone() for name, tensor in inputs.items()})
        except Exception as error:
            raise ModelError(
                f"the original model failed on inputs within their ranges: {type(error).__name__}: {error}",
                where=recipe.where, expected=f"{recipe.method} to take random inputs of the smallest bucket",
                fix="correct the shapes, dtypes and ranges of the recipe's inputs",
            ) from error  # fmt: skip
        held = dict(hidden_tensors(model))
        seen = {name: (id(tensor), tensor._version) for name, tensor in held.items()}
    original.reset()
    changed = sorted(name for name in seen if seen[name] != before.get(name))
    for name in changed:
        for other, buffer in model.named_buffers():
            if overlap(held[name], buffer):
                raise shared_memory(other, name, recipe.where)
    if changed:
        raise UnsupportedError(
            f"the model changes {', '.join(changed[:5])}{' …' if changed[5:] else ''}, which outlives the call",
            where=recipe.where, expected="registered buffers, which become state, and mutated inputs",
            fix=f"make it a buffer (self.register_buffer({changed[0].rpartition('.')[2]!r}, …)), or an input with "
            "mutated: true",
        )  # fmt: skip


def hidden_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in attributes, lists and dicts of a model and of what it holds, by path, but for its parameters and
    buffers; each once."""
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    stack: list[tuple[str, object, int]] = [(name, module, 0) for name, module in model.named_modules()]
    while stack:
        path, value, depth = stack.pop()
        if isinstance(value, torch.Tensor):
            if id(value) not in known:
                known.add(id(value))
                yield path, value
            continue
        if depth > _DEPTH or (depth and id(value) in known):
            continue
        known.add(id(value))
        stack += [(f"{path}{name}".lstrip("."), child, depth + 1) for name, child in _children(value)]


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", child) for number, child in enumerate(value))
    elif isinstance(value, torch.nn.Module):
        own = ("_parameters", "_buffers", "_modules")
        yield from ((f".{name}", child) for name, child in vars(value).items() if name not in own and _held(child))
    elif _held(value) and hasattr(value, "__dict__"):
        yield from ((f".{name}", child) for name, child in vars(value).items())


def _held(value: object) -> bool:
    """Whether something that a model holds may hold tensors of its own: not code, and not another module, which has
    its own turn."""
    code = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
    return not (code or isinstance(value, (torch.nn.Module, str, bytes, int, float, torch.dtype, torch.device)))
