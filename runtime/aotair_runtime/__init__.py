"""The runtime of aotair: opens an artifact, captures its buckets and replays them.

It imports torch, msgpack, safetensors and the standard library, and runs no code from an artifact.
"""

from .errors import AotairError
from .model import Model, load

__all__ = ["AotairError", "Model", "load"]
__version__ = "0.1.0"
