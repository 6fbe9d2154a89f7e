"""What `load` returns: an artifact bound to a device, every bucket captured, ready to be called."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from .artifact import Artifact, open_artifact
from .buckets import describe
from .check import check_requirements
from .devices import open_device
from .entry import Captured, Entry
from .errors import ArgumentError
from .executor import Memory, bind
from .ops import NAMESPACES, resolve
from .pool import Pool
from .report import MemoryReport, Stats, memory_report, stats
from .schema import EntryPoint, Program


def load(
    path: str | Path,
    *,
    device: str | None = None,
    enable_output_clone: bool | None = None,
    capture: str | Sequence[str] = "all",
    allow_namespaces: Sequence[str] = (),
) -> "Model":
    """Open the artifact at `path`, check it, bind its weights and capture its buckets.

    `device`: "cpu"; by default the one the artifact was built for.
    `enable_output_clone`: hand out fresh tensors instead of views that the next replay overwrites; by default the
    recipe's choice.
    `capture`: "all" buckets now, "lazy" (each at its first call), or a list of buckets as `Model.buckets` names them.
    `allow_namespaces`: namespaces of ops that the program may use beyond aten, npu and air.

    Raises a subclass of ArtifactError where the artifact cannot be used here.
    """
    return Model(
        open_artifact(path),
        device=device,
        enable_output_clone=enable_output_clone,
        capture=capture,
        allow_namespaces=allow_namespaces,
    )


class Model:
    """A loaded artifact. Call it (the only entry point, or `forward`), or an entry point by its name."""

    def __init__(
        self,
        artifact: Artifact,
        *,
        device: str | None = None,
        enable_output_clone: bool | None = None,
        capture: str | Sequence[str] = "all",
        allow_namespaces: Sequence[str] = (),
    ):
        program, where = artifact.program, str(artifact.path)
        self.artifact = artifact
        self._device = open_device(device or program.requirements.device)
        check_requirements(program, self._device.kind, where)
        namespaces = (*NAMESPACES, *allow_namespaces)
        self._ops = tuple(resolve(op, namespaces, where) for op in program.ops)
        self._constants = tuple(self._device.place(constant) for constant in artifact.constants)
        self._states = tuple(self._constants[state.constant].clone() for state in program.state)
        self._pool = Pool(self._device, program.arena)
        if enable_output_clone is None:
            enable_output_clone = program.options.enable_output_clone
        self.entry_points: dict[str, Entry] = {
            spec.name: Entry(program, spec, self._pool, self._capturer(spec), clone_outputs=enable_output_clone)
            for spec in program.entry_points
        }
        self._capture_now(capture)

    def __call__(self, *args, **kwargs):
        return self._main(*args, **kwargs)

    def __getattr__(self, name: str) -> Entry:
        entry = self.__dict__.get("entry_points", {}).get(name)
        if entry is None:
            raise AttributeError(f"no attribute or entry point {name!r}")
        return entry

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<aotair model {self.program.name!r} on {self._device.torch_device}: {', '.join(self.entry_points)}>"

    @property
    def program(self) -> Program:
        return self.artifact.program

    @property
    def buckets(self) -> dict[str, tuple[str, ...]]:
        """The buckets of each entry point: `{"forward": ("batch=1, seq=16", …)}`."""
        return {e.name: tuple(describe(e, b.sizes) for b in e.buckets) for e in self.program.entry_points}

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The buffers that the model mutates, by name: the memory itself, not a copy."""
        return {state.name: tensor for state, tensor in zip(self.program.state, self._states)}

    def reset_state(self) -> None:
        """Give every state the value it had at build time."""
        with self._pool.lock:
            for state, tensor in zip(self.program.state, self._states):
                tensor.copy_(self._constants[state.constant])

    def memory(self) -> MemoryReport:
        """Planned and allocated bytes, by what they are for."""
        return memory_report(self.program, self._constants, self._states, self._pool.arena)

    def stats(self) -> Stats:
        """What has been called so far, by bucket."""
        return stats(self.entry_points.values())

    def close(self) -> None:
        """Give back the memory; calls raise ClosedError from now on. Outputs still held keep theirs alive."""
        for entry in self.entry_points.values():
            entry.close()
        self._constants = self._states = ()
        self._pool.close()

    # ---- capture ------------------------------------------------------------------------------------------------

    def _capturer(self, spec: EntryPoint):
        """A function that captures bucket number `n` of this entry point, given its mutated inputs."""
        program, device, ops = self.program, self._device, self._ops
        pool, constants, states = self._pool, self._constants, self._states

        def capture(number: int, caller: Mapping[int, torch.Tensor]) -> Captured:
            bucket = spec.buckets[number]
            memory = Memory(pool.arena, constants, states, caller)
            where = f"{program.name}.{spec.name}, bucket {describe(spec, bucket.sizes)}"
            bound = bind(program, bucket, memory, ops, device.torch_device, where)
            return Captured(bound, device.capture(bound.run))

        return capture

    def _capture_now(self, wanted: str | Sequence[str]) -> None:
        known = self.buckets
        if isinstance(wanted, str) and wanted not in ("all", "lazy"):
            wanted = [wanted]
        names = {name for group in known.values() for name in group}
        if not isinstance(wanted, str) and not set(wanted) <= names:
            raise ArgumentError(
                "unknown buckets in capture=", expected="'all', 'lazy' or some of " + "; ".join(sorted(names)),
                got="; ".join(sorted(set(wanted) - names)),
            )  # fmt: skip
        for entry in self.entry_points.values():
            for number in entry.spec.capture_order:
                if wanted == "all" or (wanted != "lazy" and known[entry.spec.name][number] in wanted):
                    entry.capture(number)

    @property
    def _main(self) -> Entry:
        entries = self.entry_points
        if len(entries) == 1:
            return next(iter(entries.values()))
        if "forward" in entries:
            return entries["forward"]
        raise ArgumentError("this model has several entry points", expected="a call of one of " + ", ".join(entries))
