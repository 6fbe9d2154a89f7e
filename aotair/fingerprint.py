"""What does a program follow from, weights apart? Two builds with equal origins would make equal programs."""

import copy
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import aotair_runtime
from aotair_runtime.format.schema import Origin

from . import fusion
from .export.exported import Exported
from .fusion.rule import Fused, Registered, Variant
from .graph.show import show
from .recipe.config import CUSTOM_PASSES, CompilerConfig
from .recipe.job import Job

# What may differ between two checkpoints of one architecture, or is for people.
_FREE = (
    "name",
    "model.weights",
    "model.pretrained",
    "files",
    "verify.seed",
    "verify.level",
    "config.mode",
    "config.aclgraph_config",
    "config.debug.graph_dump",
)


def origin_of(exported: Sequence[Exported], job: Job, limits: object) -> Origin:
    """Of graphs as they were exported, before any pass. `limits` is what else keeps passes from running. Empty, and so
    like no other, where the source of a pass or rule is not found, or where the model was given as an object.
    """
    if job.given is not None:
        return Origin()
    try:
        code = _digest("\n".join(_sources(job.config, job.rules)))
    except (OSError, TypeError):
        return Origin()
    versions = f"torch {torch.__version__}, aotair {aotair_runtime.__version__}"
    text = json.dumps([_written(job), repr(limits)], sort_keys=True, ensure_ascii=True)
    graphs = "\n".join(line for graph in exported for line in _graph(graph))
    return Origin(versions, _digest(text), code, _digest(graphs))


def _written(job: Job) -> dict[str, object]:
    """The recipe as plain data, with the smallest sizes that were found."""
    plain: dict[str, Any] = copy.deepcopy(dict(job.written))
    for path in _FREE:
        *parents, last = path.split(".")
        part = plain
        for parent in parents:
            part = part[parent]
        part.pop(last, None)
    for one in job.entries:
        part = plain["entry_points"][one.entry] if plain["entry_points"] else plain
        part["dimensions"] = {dim: item.model_dump(mode="json") for dim, item in one.dimensions.items()}
    return plain


def _graph(exported: Exported) -> Iterator[str]:
    """The graph's text, which tensors of the model its placeholders are, and how these lie in memory."""
    yield show(exported.module)
    for kind, tensors in (("constant", exported.constants), ("state", exported.states)):
        for placeholder, item in tensors.items():
            group, found = exported.names.group(item.name), item.tensor
            yield f"{kind} {placeholder} {exported.names.kind(item.name)} {group} {tuple(found.shape)} {found.stride()}"
    plain = (dict(exported.inputs), exported.outputs, exported.structure, tuple(exported.names.tied), exported.defaults)
    yield repr(plain)


def _sources(config: CompilerConfig, rules: Sequence[fusion.Rule]) -> Iterator[str]:
    """The user's own code that changes the graph: the files of passes, and the files and patterns of rules."""
    for option in CUSTOM_PASSES:
        function = getattr(config, option)
        yield f"{option} {'' if function is None else _file_of(function)}"
    for rule in (*rules, *fusion.registered()):
        for variant in rule.variants:
            yield f"{rule.name} {_variant(variant)}"


def _variant(variant: Variant) -> str:
    """Raises TypeError for a kind of pattern whose source is not known."""
    if isinstance(variant, Registered):
        return f"{_file_of(variant.search_fn)} {variant.looks} {variant.does}"
    if isinstance(variant, Fused):
        return f"{_file_of(variant.replace)} {_file_of(variant.check)}"
    raise TypeError(f"a rule's variant is a {type(variant).__name__}")


def _file_of(function: Callable[..., object]) -> str:
    inner = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    inner = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner)
    return f"{inner.__qualname__} {_bytes(Path(inspect.getfile(inner)))}"


def _bytes(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
