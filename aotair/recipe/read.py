"""From YAML or a dict to a recipe that is consistent, or an error with the path to the field at fault."""

import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..errors import RecipeError
from .entry import EntryJob, entry_jobs
from .imports import import_callable
from .recipe import Recipe, read_bound

# The names of a loaded model's attributes, which no entry point may have (tests compare them with the runtime's).
RESERVED = frozenset(
    {
        "artifact",
        "buckets",
        "close",
        "device",
        "driver",
        "drives",
        "entry_points",
        "export_state",
        "follow",
        "import_state",
        "inputs",
        "load_adapter",
        "load_weights",
        "memory",
        "on_all_ranks",
        "phases",
        "profile",
        "program",
        "promise",
        "rank",
        "reset_state",
        "snapshot",
        "state",
        "stats",
        "synchronize",
        "unload_adapter",
    }
)


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML file; raises RecipeError with the path to the field at fault.

    `changes` give fields other values: `target.device=npu`, with the value as YAML.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError("there is no such recipe", where=str(path), fix="write one with: aotair init") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"not readable: {error}", where=str(path)) from error
    try:
        data = _load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise RecipeError(
            "not a recipe", where=str(path), expected="a mapping with name, model, inputs …", got=repr(data)[:60]
        )
    for change in changes:
        _change(data, change, str(path))
    return parse_recipe(data, path)


class _Loader(yaml.SafeLoader):
    """YAML's plain values; a key that stands twice is an error, where YAML would drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1 and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def _load(text: str) -> Any:
    return yaml.load(text, _Loader)


def _change(data: dict[str, Any], change: str, where: str) -> None:
    name, equals, text = change.partition("=")
    *parents, last = name.split(".")
    try:
        value = _load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {name}: not YAML: {error}", where=where, got=text) from error
    while parents:
        if not isinstance(data, dict):
            break
        # A key may have dots itself: inputs.batch.ids.dtype
        keys = [".".join(parents[:count]) for count in range(len(parents), 0, -1)]
        found = next((key for key in keys if key in data), parents[0])
        if data.get(found) is None:
            data[found] = {}
        data, parents = data[found], parents[found.count(".") + 1 :]
    if not equals or not all((*parents, last)) or not isinstance(data, dict):
        raise RecipeError("--set: no field of the recipe", where=where, expected="PATH.TO.FIELD=VALUE", got=change)
    data[last] = value


def of_model(model: torch.nn.Module, parts: dict[str, object]) -> Recipe:
    """A recipe of a model that is there already, under the name of its class where `parts` give none. An input may be
    a tensor, which says its shape and dtype. Raises RecipeError."""
    inputs = parts.get("inputs")
    if isinstance(inputs, dict):
        inputs = {name: _described(item) if isinstance(item, torch.Tensor) else item for name, item in inputs.items()}
        parts = {**parts, "inputs": inputs}
    given = {"name": type(model).__name__.strip("_") or "model", "model": {}, **parts}
    return parse_recipe(given, needs_factory=False)


def _described(tensor: torch.Tensor) -> dict[str, object]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def parse_recipe(data: Mapping[str, object], file: Path | None = None, *, needs_factory: bool = True) -> Recipe:
    """The recipe in `data`; `file` is where it came from. Without `needs_factory` the model is there already. Raises
    RecipeError."""
    where = str(file) if file else "recipe"
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise _explain(error, where) from error
    recipe = completed(recipe.read_from(file))
    check_recipe(recipe, needs_factory=needs_factory)
    return recipe


def completed(recipe: Recipe) -> Recipe:
    """A recipe of a checkpoint with the inputs and buckets that its task has, wherever it says nothing itself; any
    other as it is. Raises RecipeError or ModelError."""
    if recipe.complete:
        return recipe
    # By its name: what reads checkpoints of others stands beside the line.
    complete = import_callable("aotair.hf.tasks:complete", recipe.folder, recipe.where, "model.pretrained")
    data = complete(recipe.model_dump(exclude_unset=True), recipe.folder, recipe.where)
    try:
        return Recipe.model_validate(data).read_from(recipe._file, complete=True)
    except ValidationError as error:
        raise _explain(error, recipe.where) from error


def check_recipe(recipe: Recipe, *, needs_factory: bool = True) -> None:
    """Raises RecipeError where what the parts of a recipe say does not fit together."""
    if (recipe.model.factory is None and recipe.model.pretrained is None) == needs_factory:
        what = "missing" if needs_factory else "given beside a model"
        fix = "add model.factory or model.pretrained to the recipe" if needs_factory else "leave one of them out"
        raise RecipeError(f"model.factory: {what}", where=recipe.where, fix=fix)
    if recipe.verify.prompts and recipe.model.pretrained is None:
        raise RecipeError(
            "verify.prompts: only a checkpoint brings a tokenizer",
            where=recipe.where,
            expected="model.pretrained beside it",
            fix="name a file of inputs in samples instead",
        )
    _check_entries(recipe, recipe.where)
    for one in entry_jobs(recipe):
        _check_names(one)
        _check_buckets(one)
        _check_distinct(one)


def _check_entries(recipe: Recipe, where: str) -> None:
    fields: dict[str, object] = {"inputs": recipe.inputs, "buckets": recipe.buckets, "outputs": recipe.outputs}
    fields |= {"dimensions": recipe.dimensions}
    fields |= {"constants": recipe.constants, "types": recipe.types, "verify.samples": recipe.verify.samples}
    if not recipe.entry_points and not recipe.inputs:
        raise RecipeError(
            "inputs: missing",
            where=where,
            expected="inputs, or entry_points that have theirs",
            fix="add inputs to the recipe",
        )
    for path in [path for path, value in fields.items() if value] if recipe.entry_points else ():
        raise RecipeError(
            f"{path}: given beside entry_points", where=where, fix="move it into each entry point that it is for"
        )
    for name, part in recipe.entry_points.items():
        if not part.inputs:
            raise RecipeError(
                f"entry_points.{name}.inputs: missing",
                where=where,
                expected="the tensors that the method takes",
                fix="add inputs to the entry point",
            )
        if name.startswith("_") or name in RESERVED:
            raise RecipeError(
                f"entry_points.{name}: a loaded model has an attribute of that name", where=where, fix="rename it"
            )


def _check_names(entry: EntryJob) -> None:
    """Inputs and constants are apart, and what lies in a list is there without a gap."""
    names = [*entry.inputs, *entry.constant_values()]
    steps: dict[str, list[str]] = {}
    for name in names:
        for end in (end for end, sign in enumerate(name) if sign == "."):
            steps.setdefault(name[:end], []).append(name[end + 1 :].partition(".")[0])
    for name in names:
        if names.count(name) > 1 or name in steps:
            what = "an input and a constant" if names.count(name) > 1 else f"{name} itself, and {name}.{steps[name][0]}"
            raise RecipeError(
                f"inputs.{name}: there are {what}",
                where=entry.where,
                expected="one for each argument or part of one",
                fix="remove one of them",
            )
    for path, found in steps.items():
        kinds, numbers = {step.isdigit() for step in found}, list(dict.fromkeys(found))
        listed = kinds == {True} and entry.types.get(path) != "dict"
        mine = [n for n in numbers if any(f"{name}.".startswith(f"{path}.{n}.") for name in entry.inputs)]
        gap = listed and (sorted(map(int, numbers)) != list(range(len(numbers))) or mine != sorted(mine, key=int))
        if len(kinds) > 1 or gap:
            raise RecipeError(
                f"inputs.{path}: it is no list and no dict",
                where=entry.where,
                got=", ".join(found),
                expected="names, or the numbers 0, 1, 2 … in order",
                fix="name each thing that lies in it",
            )
    for path in [path for path in entry.types if path not in steps]:
        raise RecipeError(
            f"types.{path}: nothing lies in it",
            where=entry.where,
            expected=f"an input or constant {path}.NAME",
            got=", ".join(names),
            fix="remove it",
        )


def _check_buckets(entry: EntryJob) -> None:
    dims = set(entry.dims())
    groups: Sequence[Mapping[str, object]] = [entry.buckets] if isinstance(entry.buckets, dict) else entry.buckets
    for number, group in enumerate(groups):
        path = "buckets" if isinstance(entry.buckets, dict) else f"buckets[{number}]"
        for dim in dims - set(group):
            owner = next(name for name, item in entry.inputs.items() if dim in item.shape)
            raise RecipeError(
                f"{path}: the dynamic dimension {dim!r} of inputs.{owner}.shape has no sizes",
                where=entry.where,
                expected=f"buckets.{dim}: [size, …]",
                got=f"sizes for {', '.join(group) or 'nothing'}",
                fix=f"add {dim} to buckets, or write a number in the shape",
            )
        for dim in set(group) - dims:
            raise RecipeError(
                f"{path}.{dim}: no input has this dimension",
                where=entry.where,
                expected=f"dimensions of the inputs: {', '.join(entry.dims()) or 'none'}",
                got=dim,
                fix="remove it",
            )
    for name, item in entry.inputs.items():
        high = item.range[1] if item.range else None
        if isinstance(high, str) and (dim := read_bound(high)[0]) not in dims:
            raise RecipeError(
                f"inputs.{name}.range: no input has the dimension {dim}",
                where=entry.where,
                got=high,
                expected=f"a number, or one of {', '.join(entry.dims()) or 'no dimensions'}",
            )
    _check_least(entry)
    if dims and not groups:
        raise RecipeError("buckets: the list is empty", where=entry.where, expected="at least one bucket")


def _check_least(entry: EntryJob) -> None:
    for dim in [dim for dim in entry.dimensions if dim not in entry.dims()]:
        raise RecipeError(
            f"dimensions.{dim}: no input has this dimension",
            where=entry.where,
            expected=f"dimensions of the inputs: {', '.join(entry.dims()) or 'none'}",
            got=dim,
            fix="remove it",
        )
    for sizes in entry.bucket_sizes():
        for dim, size in zip(entry.dims(), sizes):
            if size < entry.least(dim):
                raise RecipeError(
                    f"buckets: there is one with {dim} {size}, and no call may be so small",
                    where=entry.where,
                    expected=f"{entry.least(dim)} at least, by dimensions.{dim}.min or a range that is not empty",
                    got=str(size),
                    fix="leave that bucket out",
                )


def _check_distinct(entry: EntryJob) -> None:
    for name, item in entry.inputs.items():
        for sizes in entry.bucket_sizes() if item.distinct else ():
            by_dim = dict(zip(entry.dims(), sizes))
            low, high = map(int, item.at(by_dim).ends)
            count, values = math.prod(item.shape_at(by_dim)), high - low
            if count > values:
                raise RecipeError(
                    f"inputs.{name}.range: there are fewer values than a bucket needs distinct ones",
                    where=entry.where,
                    expected=f"{count} for the bucket {', '.join(f'{d}={s}' for d, s in by_dim.items())}",
                    got=f"{values}",
                    fix="widen range, or make the bucket smaller",
                )


def _explain(error: ValidationError, where: str) -> RecipeError:
    details = error.errors(include_url=False)
    first = min(details, key=lambda item: (item["type"] != "extra_forbidden", -len(item["loc"])))
    path = _path(first)
    got = first.get("input")
    expected, fix = "", ""
    what = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # two parts of it do not fit: the message names them
        return RecipeError(what, where=where)
    if first["type"] == "extra_forbidden":
        what, expected = "unknown key", "one of " + ", ".join(_known(first))
        got, fix = first["loc"][-1], "remove it or correct its name"
    elif first["type"] == "missing":
        what, got = "missing", None
        fix = f"add {path} to the recipe"
    else:
        expected, what = what[:1].lower() + what[1:], "wrong value"
    return RecipeError(
        f"{path}: {what}", where=where, expected=expected, got="" if got is None else repr(got)[:80], fix=fix
    )


def _path(item: ErrorDetails) -> str:
    """`inputs.x.shape[1]`, without the names of union branches that pydantic adds."""
    text = ""
    for part in item["loc"]:
        if isinstance(part, int):
            text += f"[{part}]"
        elif (
            "[" not in part
            and part not in ("str", "int", "float", "bool", "none")
            and not part.startswith("constrained")
        ):
            text += f".{part}" if text else part
    return text or "recipe"


def _known(item: ErrorDetails) -> list[str]:
    """The keys that the part of the recipe at fault does have."""
    model: Any = Recipe
    for part in item["loc"][:-1]:
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            continue
        candidates = (field.annotation, *getattr(field.annotation, "__args__", ()))
        model = next((kind for kind in candidates if hasattr(kind, "model_fields")), model)
    return list(model.model_fields)
