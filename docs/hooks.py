"""What MkDocs writes where a page says `<!-- generated: NAME -->`: tables made from the code, texts of the repository.

Nothing here is written by hand twice: recipe keys come from the schema, commands from click, the map of files from each
module's first line.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_MARK = re.compile(r"<!-- generated: (.+?) -->")


def on_page_markdown(markdown: str, **_: object) -> str:
    """MkDocs calls this for each page."""
    return _MARK.sub(lambda found: PARTS[found[1]](), markdown)


# ---- recipe keys -----------------------------------------------------------------------------------------------------


def recipe_keys() -> str:
    """A table for each part of a recipe, the outermost first."""
    from aotair.recipe.recipe import Recipe

    schema = Recipe.model_json_schema()
    return "\n\n".join(_part(name, part) for name, part in _reached(schema))


def _reached(schema: dict) -> Iterator[tuple[str, dict]]:
    """The parts, in the order in which a reader meets them; each once."""
    waiting, seen = [("Recipe", schema)], set()
    while waiting:
        name, part = waiting.pop(0)
        if name in seen or "properties" not in part:
            continue
        seen.add(name)
        yield name, part
        names = re.findall(r"#/\$defs/(\w+)", json.dumps(part["properties"]))
        waiting[:0] = [(found, schema["$defs"][found]) for found in dict.fromkeys(names)]


_PLACES = {
    "Recipe": "The recipe", "ModelPart": "`model`", "WeightsPart": "`model.weights`", "TargetPart": "`target`",
    "InputPart": "Each of `inputs`", "DimensionPart": "Each of `dimensions`", "OutputPart": "Each of `outputs`",
    "EntryPart": "Each of `entry_points`", "QuantizePart": "`quantize`", "VerifyPart": "`verify`",
    "CompilerConfig": "`config`", "Debug": "`config.debug`", "GraphDump": "`config.debug.graph_dump`",
    "AclGraphDebug": "`config.debug.aclgraph`", "AclGraphConfig": "`config.aclgraph_config`",
    "ExperimentalConfig": "`config.experimental_config`",
}  # fmt: skip


def _part(name: str, part: dict) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, field in part["properties"].items():
        must = key in part.get("required", ())
        plain = field.get("default") is not None or ("default" in field and not _refers(field))
        default = "*must be there*" if must else f"`{json.dumps(field['default'])}`" if plain else ""
        meaning = _cell(field.get("description", "") or _below(field))
        rows.append(f"| `{key}` | {_cell(_kind(field))} | {default} | {meaning} |")
    about = " ".join(part.get("description", "").split())
    return f"## {_PLACES[name]}\n\n{about}\n\n" + "\n".join(rows)


def _below(field: dict) -> str:
    """Where a key that holds a part of its own is described."""
    names = [_PLACES[name] for name in _refers(field)]
    return f"see {', '.join(names)}" if names else ""


def _refers(field: dict) -> list[str]:
    return [name for name in re.findall(r"#/\$defs/(\w+)", json.dumps(field)) if name in _PLACES]


def _kind(field: dict) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    for several in ("anyOf", "oneOf"):
        if several in field:
            return " or ".join(dict.fromkeys(_kind(one) for one in field[several]))
    if "$ref" in field or "allOf" in field:
        return "keys"
    kind = field.get("type", "any value")
    if kind == "array":
        inner = _kind(field.get("items", {}))
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    if kind == "object" and "additionalProperties" in field:
        return f"name: {_kind(field['additionalProperties'] if field['additionalProperties'] is not True else {})}"
    if kind == "object" and "patternProperties" in field:
        return f"name: {_kind(next(iter(field['patternProperties'].values())))}"
    names = {"string": "text", "boolean": "true or false", "integer": "whole number", "object": "keys", "null": "null"}
    return " or ".join(names.get(one, one) for one in ([kind] if isinstance(kind, str) else kind))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---- commands --------------------------------------------------------------------------------------------------------


def commands() -> str:
    """The help of each command, as click has it."""
    import click

    from aotair.cli import main

    context = click.Context(main, info_name="aotair")
    found = [_command(main, context)]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        found.append(_command(command, click.Context(command, info_name=name, parent=context)))
    return "\n\n".join(found)


def _command(command: Any, context: Any) -> str:
    usage = command.get_usage(context).removeprefix("Usage: ")
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            rows.append(f"| `{record[0]}` | {_cell(record[1])} |")
    about = "\n".join(line.strip() for line in (command.help or "").splitlines())
    table = "\n".join(["| option | meaning |", "|---|---|", *rows])
    return f"## {context.command_path}\n\n```text\n{usage}\n```\n\n{about}\n\n{table}"


# ---- files and texts -------------------------------------------------------------------------------------------------


def map_of_files() -> str:
    """Each module and the first line of what it says of itself, by folder."""
    found = []
    for package in (ROOT / "aotair", ROOT / "runtime" / "aotair_runtime"):
        folders = sorted({file.parent for file in package.rglob("*.py")}, key=lambda path: (path != package, str(path)))
        for folder in folders:
            rows = [(file.name, _first_line(file)) for file in sorted(folder.glob("*.py"))]
            lines = [f"| `{name}` | {_cell(line)} |" for name, line in rows if line]
            heading = "##" if folder == package else "###"
            title = f"{heading} `{folder.relative_to(ROOT)}/`"
            if lines:
                found.append("\n".join([title, "", "| file | what it answers |", "|---|---|", *lines]))
    return "\n\n".join(found)


def _first_line(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.partition("\n\n")[0]


def fusion_rules() -> str:
    """aotair's own fusion rules, in order."""
    from aotair import fusion

    rows = [
        f"| `{rule.name}` | {_cell(rule.says)} | {', '.join(sorted(rule.devices or ['any']))} |"
        for rule in fusion.RULES
    ]
    return "\n".join(["| rule | what it does | target |", "|---|---|---|", *rows])


def _text(name: str) -> Callable[[], str]:
    return lambda: (ROOT / name).read_text()


PARTS: dict[str, Callable[[], str]] = {
    "recipe keys": recipe_keys,
    "commands": commands,
    "map of files": map_of_files,
    "fusion rules": fusion_rules,
    "FORMAT.md": _text("FORMAT.md"),
    "CHANGELOG.md": _text("CHANGELOG.md"),
    "CONTRIBUTING.md": _text("CONTRIBUTING.md"),
}
