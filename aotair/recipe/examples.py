"""The example recipes that come with aotair, copied to where a user can change them."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from aotair_runtime.errors import AotairError

from ..disk.place import new_file, refusals


def copy_example(name: str, folder: Path) -> Iterator[Path]:
    """Copy the recipe of that name, and the file that makes its model, into a folder; gives what was written.

    The copy names its factory as a file beside it. Raises AotairError where there is no such recipe, or a file is there
    already.
    """
    recipes = _folder()
    there = sorted(file.stem for file in recipes.glob("*.yaml"))
    if name not in there:
        raise AotairError("there is no such example", where="aotair init", expected=", ".join(there), got=name)
    text = (recipes / f"{name}.yaml").read_text(encoding="utf-8")
    factory = re.search(r"factory: *recipes\.(\w+):", text)
    assert factory is not None, f"the recipe {name} names no factory beside it"
    texts = {
        f"{name}.yaml": re.sub(r"(factory: *)recipes\.(\w+):", r"\1\2.py:", text),
        f"{factory[1]}.py": (recipes / f"{factory[1]}.py").read_text(encoding="utf-8"),
    }
    for file in map(folder.joinpath, texts):
        if file.exists():
            raise AotairError(
                "a file would be overwritten", where="aotair init", got=str(file), fix="pass --out FOLDER"
            )
    with refusals(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for written, content in texts.items():
        with new_file(folder / written) as aside:
            aside.write_text(content, encoding="utf-8")
        yield folder / written


def _folder() -> Path:
    """Where the recipes lie: in the installed package, or at the top of a checkout."""
    spec = importlib.util.find_spec("aotair.recipes")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(__file__).parent.parent.parent / "recipes"
