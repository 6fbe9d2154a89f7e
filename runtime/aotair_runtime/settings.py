"""What a caller may set when loading an artifact."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .artifact.digests import Verify
from .confine.op_table import Allowed
from .devices import Limits
from .errors import ArgumentError
from .format.schema import Options
from .memory.amounts import read_budget

KEPT_GRAPHS = 4
_MOST_THREADS = 4096
_VERIFY: dict[str | bool, Verify] = {
    "full": "full",
    "sampled": "sampled",
    "length": "length",
    "signed-only": "signed-only",
    True: "full",
    False: "length",
}


@dataclass(frozen=True)
class Settings:
    """The options of `load`, resolved: see there."""

    clone_input: bool = True
    enable_output_clone: bool = False
    disable_mempool_reuse_in_same_fx: bool = False
    capture: str | tuple[str, ...] = "all"
    kept_graphs: int = KEPT_GRAPHS
    limits: Limits = field(default_factory=Limits)
    memory_budget: int | float | None = None
    allowed: Allowed = field(default_factory=Allowed)
    pack_weights: bool = True
    verify: Verify = "full"
    private: bool = False
    snapshot_on_error: Path | None = None
    threads: int | None = None

    @property
    def apart(self) -> bool:
        """Whether each bucket has memory of its own."""
        return self.disable_mempool_reuse_in_same_fx


def settle(
    stored: Options,
    *,
    clone_input: bool | None = None,
    enable_output_clone: bool | None = None,
    disable_mempool_reuse_in_same_fx: bool | None = None,
    capture: str | Sequence[str] = "all",
    kept_graphs: int = KEPT_GRAPHS,
    limits: Limits | None = None,
    memory_budget: int | float | str | None = None,
    allow_namespaces: Sequence[str] = (),
    allow_ops: Sequence[str] = (),
    pack_weights: bool | None = None,
    verify_weights: str | bool = "full",
    private: bool = False,
    snapshot_on_error: str | Path | None = None,
    threads: int | None = None,
) -> Settings:
    """The settings of one load: what the caller gave, else what the recipe `stored`. Raises ArgumentError."""
    flags = {
        "clone_input": clone_input,
        "enable_output_clone": enable_output_clone,
        "disable_mempool_reuse_in_same_fx": disable_mempool_reuse_in_same_fx,
        "pack_weights": pack_weights,
    }
    for name, value in flags.items():
        _must(isinstance(value, bool | None), name, "True, False or None", value)
    _must(isinstance(private, bool), "private", "True or False", private)
    _must(type(kept_graphs) is int and kept_graphs >= 1, "kept_graphs", "a number, at least 1", kept_graphs)
    counted = threads is None or (type(threads) is int and 1 <= threads <= _MOST_THREADS)
    _must(counted, "threads", f"a number from 1 to {_MOST_THREADS:,}, or None", threads)
    _must(isinstance(limits, Limits | None), "limits", "aotair.Limits(captures=…, streams=…, events=…)", limits)
    named = isinstance(capture, (list, tuple, set)) and all(isinstance(bucket, str) for bucket in capture)
    _must(isinstance(capture, str) or named, "capture", "'all', 'lazy' or a list of buckets", capture)
    for name, names in {"allow_namespaces": allow_namespaces, "allow_ops": allow_ops}.items():
        listed = isinstance(names, (list, tuple, set)) and all(isinstance(one, str) for one in names)
        _must(listed, name, "a list of names", names)
    return Settings(
        _choose(clone_input, stored.clone_input),
        _choose(enable_output_clone, stored.enable_output_clone),
        _choose(disable_mempool_reuse_in_same_fx, stored.disable_mempool_reuse_in_same_fx),
        capture if capture in ("all", "lazy") else (capture,) if isinstance(capture, str) else tuple(capture),
        kept_graphs,
        limits or Limits(),
        _budget(memory_budget),
        Allowed(tuple(allow_namespaces), tuple(allow_ops)),
        _choose(pack_weights, True),
        _verify(verify_weights),
        private,
        _folder(snapshot_on_error),
        threads,
    )


def _verify(value: object) -> Verify:
    """True and False stand for all of the weights and none."""
    given = _VERIFY.get(value) if isinstance(value, (str, bool)) else None
    if given is None:
        raise _wrong("verify_weights", "'full' (True), 'sampled', 'length' (False) or 'signed-only'", value)
    return given


def _folder(value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not os.path.isdir(value):
        raise _wrong("snapshot_on_error", "a folder that is there", value)
    return Path(value)


def _choose(given: bool | None, otherwise: bool) -> bool:
    return otherwise if given is None else given


def _must(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise _wrong(name, expected, got)


def _wrong(name: str, expected: str, got: object) -> ArgumentError:
    return ArgumentError(f"{name}= is wrong", expected=expected, got=repr(got)[:80])


def _budget(value: object) -> int | float | None:
    expected = "bytes (24 * 2**30, '24GiB'), or a share of the device (0.9, '90%')"
    try:
        found = read_budget(value)
    except ValueError:
        found = 0
    if found is None or ((type(found) is int or type(found) is float) and found > 0):
        return found
    raise _wrong("memory_budget", expected, value)
