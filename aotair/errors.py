"""Why a recipe cannot be built; each is one message that its reader can act on."""

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch

from aotair_runtime.errors import AotairError

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


class RecipeError(AotairError):
    """A recipe that cannot be read, or a field of it that is wrong."""


class ModelError(AotairError):
    """The factory, or the model that it made, does not do what the recipe says."""


class ExportError(AotairError):
    """torch.export cannot make one graph of the model for these inputs and buckets."""


class SizesError(ExportError):
    """torch.export finds no graph that serves all sizes of the buckets."""


class UnsupportedError(AotairError):
    """The graph holds something that an artifact cannot hold."""


class GraphError(AotairError):
    """A custom pass failed, or left a graph, scopes or events that mean nothing."""


class ProofError(AotairError):
    """The built program does not answer as the original model does."""


class WriteError(AotairError):
    """The system does not let a file or an artifact be written; what was there is as it was."""


class ProcessError(AotairError):
    """A process that shares the work of a build was ended by the system."""


class SignError(AotairError):
    """An artifact cannot be signed: its key, its certificate, or a package that is missing; it is as it was."""


class InternalError(Exception):
    """A stage left something illegal behind: a fault of aotair (or of a custom pass), never of the recipe."""


def user_frame(error: BaseException) -> str:
    """` (at file.py:12, in forward)`: the last frame of the model's own code, or nothing."""
    if found := line_of(traceback.extract_tb(error.__traceback__)):
        return found
    # torch may say it in words, of the call of a graph that it had traced
    lines = re.findall(r'^ *File "([^"<]+)", line (\d+), in (\S+)', str(error), re.MULTILINE)
    return line_of([traceback.FrameSummary(file, int(number), name, lookup_line=False) for file, number, name in lines])


def line_of(frames: Iterable[traceback.FrameSummary]) -> str:
    """` (at file.py:12, in forward)`: the innermost of the frames, the last, that is of the model's own code."""
    found = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f" (at {Path(found[-1].filename).name}:{found[-1].lineno}, in {found[-1].name})" if found else ""
