"""From `package.module:attribute` or `path/to/file.py:attribute` to what it names, found beside the recipe too."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from ..errors import ModelError

_under_way: dict[Path, ModuleType] = {}  # files that are being executed


def import_callable(name: str, folder: Path, where: str, field: str, *, anew: bool = True) -> Callable[..., object]:
    """The callable that `package.module:attribute` or `path/to/file.py:attribute` names; raises ModelError. A file is
    executed `anew`, or else only where it has not been: a class of it is then the one that the model knows."""
    module_name, _, attribute = name.rpartition(":")
    try:
        with importing_from(folder):
            module = _import_file(folder / module_name, anew) if module_name.endswith(".py") else _import(module_name)
            value: object = module
            for part in attribute.split("."):
                value = getattr(value, part)
    except Exception as error:
        raise ModelError(
            f"{field}: cannot import {name!r}: {type(error).__name__}: {error}",
            where=where,
            expected="package.module:callable, or path/to/file.py:callable (relative to the recipe)",
            fix="check the spelling, and that the package is installed or importable from the working directory",
        ) from error
    if not callable(value):
        raise ModelError(f"{field}: {name!r} cannot be called", where=where, got=type(value).__name__)
    return value


@contextlib.contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Let modules beside the working directory and beside the recipe be imported, as `python` would."""
    added = [str(Path.cwd()), str(folder.resolve())]
    sys.path[:0] = added
    try:
        yield
    finally:
        for entry in added:
            sys.path.remove(entry)


def _import(name: str) -> ModuleType:
    """The module of that name; the script that runs where it is that one: it would run a second time otherwise."""
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and _is_main(Path(spec.origin)):
            return sys.modules["__main__"]
    return importlib.import_module(name)


def _import_file(path: Path, anew: bool) -> ModuleType:
    """The module in a file, executed anew; not where it is the script that runs, or calls for itself meanwhile: a file
    that holds a model, passes and the call that builds it would import itself without end."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    path = path.resolve()
    if _is_main(path):
        return sys.modules["__main__"]
    if path in _under_way:
        return _under_way[path]
    spec = importlib.util.spec_from_file_location(f"_aotair_recipe_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "every file whose name ends so has a loader"
    module = importlib.util.module_from_spec(spec)
    there = sys.modules.get(spec.name)
    if not anew and there is not None and getattr(there, "__file__", None) == str(path):
        return there
    sys.modules[spec.name] = _under_way[path] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del _under_way[path]
    return module


def _is_main(path: Path) -> bool:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()
