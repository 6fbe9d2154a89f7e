"""Why a recipe cannot be built; each is one message that its reader can act on."""

import traceback
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


class UnsupportedError(AotairError):
    """The graph holds something that an artifact cannot hold."""


class GraphError(AotairError):
    """A custom pass failed, or left a graph, scopes or events that mean nothing."""


class ProofError(AotairError):
    """The built program does not answer as the original model does."""


class InternalError(Exception):
    """A stage left something illegal behind: a fault of aotair (or of a custom pass), never of the recipe."""


def user_frame(error: BaseException) -> str:
    """` (at file.py:12, in forward)`: the last frame of the model's own code, or nothing."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THE_USERS)]
    return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
