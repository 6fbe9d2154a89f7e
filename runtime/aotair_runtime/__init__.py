"""The runtime of aotair: opens an artifact, captures its buckets and replays them.

It imports torch, msgpack, safetensors and the standard library, and runs no code from an artifact.
"""

from .capture.pool import Pool, graph_pool
from .devices import Limits
from .errors import AotairError
from .fitness.check import check
from .fitness.verdict import Verdict
from .model import Model, load
from .trust.policy import TrustPolicy
from .version import __version__ as __version__

__all__ = ["AotairError", "Limits", "Model", "Pool", "TrustPolicy", "Verdict", "check", "graph_pool", "load"]
