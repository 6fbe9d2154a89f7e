"""The structure in which a call returns its tensors: as the original model did, from plain data."""

from collections.abc import Callable, Iterator, Sequence

import torch


class Record(dict):
    """A named group of outputs (a dataclass, named tuple or model output in the original), by key or attribute."""

    def __getattr__(self, name: str):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no output {name!r}; there are {', '.join(map(str, self))}") from None


def packer(tree: tuple) -> Callable[[Sequence[torch.Tensor]], object]:
    """A function from the list of output tensors to the structure that `tree` (schema.Tree) describes."""
    tag, *rest = tree
    if tag == "tensor":
        number = rest[0]
        return lambda outputs: outputs[number]
    if tag == "const":
        value = rest[0]
        return lambda outputs: value
    if tag in ("dict", "record"):
        kind, keys, children = (dict, *rest[:1], rest[1:]) if tag == "dict" else (Record, rest[1], rest[2:])
        parts = [packer(child) for child in children]
        return lambda outputs: kind(zip(keys, [part(outputs) for part in parts]))
    parts = [packer(child) for child in rest]
    kind = tuple if tag == "tuple" else list
    return lambda outputs: kind([part(outputs) for part in parts])


def leaf_names(tree: tuple, path: str = "") -> Iterator[str]:
    """A name for each tensor of a structure: `last_hidden_state`, `past[0]`, or `output` where it is one tensor."""
    tag, *rest = tree
    if tag == "tensor":
        yield path or "output"
    elif tag in ("tuple", "list"):
        for i, child in enumerate(rest):
            yield from leaf_names(child, f"{path}[{i}]")
    elif tag in ("dict", "record"):
        keys, children = (rest[0], rest[1:]) if tag == "dict" else (rest[1], rest[2:])
        for name, child in zip(keys, children, strict=True):
            yield from leaf_names(child, f"{path}.{name}" if path else str(name))
