"""The modules that a user names on a command line, which define ops."""

import importlib
import sys
from pathlib import Path

from aotair_runtime.errors import AotairError


def import_modules(modules: tuple[str, ...]) -> None:
    """What --import names."""
    sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as error:
            raise AotairError(f"--import {module}: {error}", expected="a module that Python finds") from error
