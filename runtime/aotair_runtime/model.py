"""What `load` returns: an artifact bound to a device, every bucket captured, ready to be called."""

import contextlib
import functools
import hashlib
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .artifact.asked import Asked, asked_for
from .artifact.folder import Folder
from .artifact.open import Artifact, check_unchanged, opened, with_weights
from .artifact.ops import resolve
from .artifact.renamed import Naming
from .artifact.requirements import check_requirements
from .call.driver import Driver, follow
from .call.entry import Entry
from .call.ranked import RankedEntry
from .capture.graphs import Graphs, Parts, Resident
from .capture.phases import Phase, Phases
from .capture.pool import Pool, pool_of
from .confine.check import check_calls
from .devices import Device, Limits, open_device
from .devices.collector import at_rest
from .devices.threads import threads as on_threads
from .errors import ArgumentError, ClosedError, DeviceError, WeightsError, in_line, shown
from .format.html import html_table
from .format.limits import MOST_PROGRAM_BYTES
from .format.mesh import mesh_text
from .format.schema import PROGRAM_FILE, Bucket, EntryPoint, Program
from .format.sizes import describe, shape_text
from .handover import checked, taken
from .memory.budget import check_budget, check_memory, cost, pool_cost, raise_out_of_memory
from .memory.promise import Promise, Terms, promise
from .memory.sizes import fresh_bytes
from .ranks.members import here
from .ranks.party import TIMEOUT, Party, Processes, Wish, ranks_here
from .report import MemoryReport, Stats, memory_report, stats
from .settings import KEPT_GRAPHS, Settings, settle
from .trust.gate import gate_for
from .trust.policy import TrustPolicy
from .version import __version__
from .weights.adapted import Base, adapted, read_base, without_adapter
from .weights.adapter import read_adapter
from .weights.laid_down import laid_down
from .weights.swap import Weights, read_weights, swap

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .profile.profile import Profile
    from .snapshot.take import Camera

_log = logging.getLogger("aotair.runtime")
_MOST_NAME = 80  # of a device, in errors: an artifact may ask for one that nobody has


def load(
    path: str | Path,
    *,
    device: str | torch.device | None = None,
    pool: Pool | tuple[int, int] | None = None,
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
    trust: TrustPolicy | None = None,
    snapshot_on_error: str | Path | None = None,
    threads: int | None = None,
    group: "ProcessGroup | None" = None,
    rank_timeout: float = TIMEOUT,
    mesh: Mapping[str, int] | None = None,
) -> "Model":
    """Open the artifact at `path`, check it, bind its weights and capture its buckets. Arguments that are None leave
    the recipe's choice.

    `device`: "cpu", "npu", "cuda", with an index like "npu:1"; by default the kind the artifact was built for, or the
    pool's.
    `pool`: memory to share with other models: a `graph_pool`, or a handle of `torch.npu.graph_pool_handle()`, which
    stands for one (TorchAir's `use_custom_pool`, mode 1). Each replay of any of them overwrites the outputs of the one
    before, but for those of models with `disable_mempool_reuse_in_same_fx`.
    `disable_mempool_reuse_in_same_fx`: give each bucket memory of its own instead of one arena for all (mode 2 off).
    With `pool` too, its replays take turns with the others of the pool, and neither overwrites what the other made:
    what TorchAir does whenever it is given a pool.
    `clone_input`: copy inputs into the runtime's memory at each call (mode 3). If False, the first call's inputs are
    used where they lie, and calls with others are copied; a call at the first one's addresses copies nothing.
    `enable_output_clone`: hand out fresh tensors instead of views that the next replay overwrites.
    `capture`: "all" buckets now, "lazy" (each at its first call), or a list of buckets as `Model.buckets` names them.
    Buckets with mutated inputs wait for their first call, which brings the addresses.
    `kept_graphs`: for how many sets of addresses of such inputs a bucket keeps its graph.
    `limits`: refuse to capture beyond these numbers of graphs, streams and events in this process.
    `memory_budget`: the most that the model may take, in bytes (int, "24GiB") or as a share of the device (0.9, "90%").
    `allow_ops`: ops that the program may call beyond those of the table (`aotair_runtime.confine.op_table`), by name
    ("aten::bincount"), and `allow_namespaces`: whole namespaces. You vouch that they stay within the tensors they get.
    `pack_weights`: False reads weights as they lie in the file, where the build would have this processor's own form of
    them (linear layers on the CPU in bfloat16, and in float32 on AMD's or with a library of oneDNN; the format NZ on
    NPUs): slower, and on the CPU without a second copy of these weights in memory. Weights of four bits, and on NPUs
    those of `npu_mla_prolog_v3`, are packed in any case. On the CPU False also leaves out kernels of other libraries
    than torch's (`aotair-kernels`).
    `verify_weights`: "full" (True) compares every byte of the weights with the digests that the build recorded;
    "sampled" those of the first 64 MiB and of an eighth of the others, drawn by chance: it finds what was cut or copied
    badly sooner than later, not one changed byte; "length" (False) none. The logger `aotair.runtime` says at the level
    INFO how much was looked at, and how fast.
    `trust`: load only what somebody has signed whom this policy trusts (`aotair sign`); the signature is verified
    before anything of the artifact is parsed. It holds for `load_weights` and `load_adapter` too. Where the node has a
    policy of its own (`/etc/aotair/trust.json`), both have to be satisfied. All files of the artifact are compared with
    what was signed; with `verify_weights="signed-only"` the program and the weights alone, and what is read later when
    it is read. "sampled" and "length" are refused then.
    `private`: copy the weights instead of mapping them, so that nothing that becomes of the file reaches the model.
    `snapshot_on_error`: a folder that gets a snapshot of each call that fails on the device, at most eight, as
    `Model.snapshot` writes them; the log says where. For that each call first copies its inputs and all states to the
    host, which takes time, and host memory that the promise does not count.
    `threads`: among how many threads a call on the CPU shares its work, whatever `torch.set_num_threads` says; by
    default that number. With one for each of several models, or of several processes, as many work at the same time
    and none waits for another: `aotair bench ARTIFACT --workers 2` says what that brings.
    `group`: of an artifact for several ranks (`mesh` of a recipe), the process group of torch.distributed whose ranks
    run it together; by default all, which find each other by what torchrun sets. All of them load it at the same time,
    and make the same calls in the same order. `rank_timeout`: for how many seconds a rank waits for the others, here
    and in calls, before it gives up with an error that names who did not come.
    `mesh`: of an artifact for several meshes, which of them, `{"tp": 2}`; `{}` is one rank. By default that which has
    as many ranks as the process group, or as torchrun has started, and without either that of one rank; where none or
    several of them have, RankError names those that are there.

    Raises a subclass of ArtifactError where the artifact cannot be used here, MemoryBudgetError, before anything is
    allocated, where it would take more memory than it may or the device has left, BudgetError, OutOfMemoryError or
    another CaptureError where a bucket cannot be captured; nothing is left behind then.
    """
    path, phases, wish = Path(path), Phases(), Wish(group, rank_timeout)
    asked = Asked(ranks=functools.partial(ranks_here, wish)) if mesh is None else asked_for(mesh)
    with contextlib.ExitStack() as held, at_rest():
        with phases.phase("check"):
            gate = gate_for(trust, verify_weights)
            folder, program = opened(path, gate, asked)
            held.enter_context(folder.closed_on_error())
            opened_device, pool = _open_device(device, pool, program)
            check_requirements(program, opened_device, str(path))
        settings = settle(
            program.options,
            clone_input=clone_input,
            enable_output_clone=enable_output_clone,
            disable_mempool_reuse_in_same_fx=disable_mempool_reuse_in_same_fx,
            capture=capture,
            kept_graphs=kept_graphs,
            limits=limits,
            memory_budget=memory_budget,
            allow_namespaces=allow_namespaces,
            allow_ops=allow_ops,
            pack_weights=pack_weights,
            verify_weights=verify_weights,
            private=private,
            snapshot_on_error=snapshot_on_error,
            threads=threads,
        )
        _refuse_threads(settings, opened_device)
        party = _met(folder, program, opened_device, settings, wish, phases)
        held.callback(lambda: None if party is None or made else party.close())
        made: list[Model] = []
        with phases.phase("map"), together(party, "opening the weights"):
            rank = 0 if party is None else party.rank
            artifact = with_weights(
                folder, program, verify=settings.verify, private=settings.private, gate=gate, rank=rank
            )
        made.append(Model(artifact, opened_device, settings, pool, phases, party))
        return made[0]


class Model:
    """A loaded artifact. Call it (the only entry point, or `forward`), or an entry point by its name: `model.decode`,
    which keeps what it needs of the model even where nobody holds the model any more. `close`, or leaving a `with`,
    gives back its memory at once, whoever holds what."""

    def __init__(
        self,
        artifact: Artifact,
        device: Device,
        settings: Settings,
        pool: Pool | None = None,
        phases: Phases | None = None,
        party: Party | None = None,
    ):
        self.artifact, self._reloads, self._party = artifact, 0, party
        phases = phases or Phases()
        wanted = buckets_now(artifact.program, settings.capture)
        with phases.phase("check calls"), together(party, "checking the calls"):
            self._parts = _checked(artifact, device, settings, pool, wanted, phases)
        if party is not None:
            self._parts = replace(self._parts, groups=party.groups)
            party.at_end = _closes(weakref.ref(self))
        self._resident, self._base = Resident(), Base({})
        self._pools: list[Pool] = []
        self._camera = _camera(artifact, device, settings.snapshot_on_error)
        self._given_pool = pool  # kept alive, for whoever loads with the same handle
        own = pool is None or settings.apart
        self.entry_points: dict[str, Entry] = {}
        self._graphs: list[Graphs] = []
        # What is left to do when nobody closes the model, and nobody holds it or an entry point of it any more.
        self._life = _Life()
        self._end = weakref.finalize(self._life, _release, self._graphs, self._pools, own, device)
        self._end.atexit = False
        try:
            with together(party, "placing the weights"):
                self._bind(pool)
            with together(party, "capturing"):
                for spec, number in wanted:
                    self.entry_points[spec.name].capture(number)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise_out_of_memory(error, device, self.promise, str(artifact.path))
            raise
        _log_load(self)

    def _bind(self, pool: Pool | None) -> None:
        """Place the weights and states, and make the entry points."""
        program, device = self.program, self._parts.device
        with self._parts.phases.phase("place weights"), on_threads(self._parts.settings.threads):
            self._resident = laid_down(self.artifact, device, self._parts.settings.pack_weights)
        for spec in program.entry_points:
            with self._parts.phases.phase("allocate the arena"):
                pools = self._pools_for(spec, pool)
            entry = self._entry(spec, pools)
            self.entry_points[spec.name] = entry
            self._graphs.append(entry.graphs)
        self._only = next(iter(self.entry_points.values())) if len(self.entry_points) == 1 else None

    def _entry(self, spec: EntryPoint, pools: Sequence[Pool]) -> Entry:
        parts, resident, life = self._parts, self._resident, self._life
        if self._party is not None:
            return RankedEntry(spec, parts, resident, pools, life, self._party)
        if self._camera is None:
            return Entry(spec, parts, resident, pools, life)
        from .snapshot.take import WatchedEntry

        return WatchedEntry(spec, parts, resident, pools, life, self._camera)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return (self._only or self._main)(*args, **kwargs)

    def __getattr__(self, name: str) -> Entry:
        entries: dict[str, Entry] = self.__dict__.get("entry_points", {})
        entry = entries.get(name)
        if entry is None:
            raise AttributeError(f"no attribute or entry point {name!r}")
        return entry

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<aotair model {self.program.name!r} on {self._parts.device.torch_device}: "
            f"{shown(', '.join(self.entry_points))}>"
        )

    def _repr_html_(self) -> str:
        rows = []
        for entry in self.program.entry_points:
            inputs = [f"{one.name}: {one.dtype}{shape_text(entry, one.shape)}" for one in entry.inputs]
            rows.append([entry.name, ", ".join(inputs), "; ".join(self.buckets[entry.name])])
        return html_table(["entry point", "inputs", "buckets"], rows, f"{self.program.name} on {self.device}")

    @property
    def program(self) -> Program:
        return self.artifact.program

    @property
    def promise(self) -> Promise:
        """The memory that the artifact takes on this device."""
        return self._parts.promise

    @property
    def device(self) -> torch.device:
        """Where inputs have to lie, and outputs do."""
        return self._parts.device.torch_device

    @property
    def buckets(self) -> dict[str, tuple[str, ...]]:
        """The buckets of each entry point: `{"forward": ("batch=1, seq=16", …)}`."""
        return {e.name: tuple(describe(e, b.sizes) for b in e.buckets) for e in self.program.entry_points}

    @property
    def inputs(self) -> dict[str, dict[str, torch.Tensor]]:
        """By bucket, as `buckets` names them, and by name: the buffers that inputs are copied to. What is written
        there and passed to a call is not copied; the call overwrites it. In most artifacts all buckets share them."""
        return (self._only or self._main).inputs

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The buffers that the model mutates, by name: the memory itself, not a copy."""
        self._refuse_closed()
        return {state.name: tensor for state, tensor in zip(self.program.state, self._resident.states)}

    def reset_state(self) -> None:
        """Give every state the value it had at build time."""
        self._refuse_closed()
        pool = self._pools[0]
        with pool.lock:
            pool.enter()
            for state, tensor in zip(self.program.state, self._resident.states):
                tensor.copy_(self._resident.constants[state.constant])

    def export_state(
        self, slots: Sequence[int], *, rows: int | None = None, parts: int | None = None
    ) -> dict[str, torch.Tensor]:
        """What the states hold for some sequences, to go on with them in another process: copies on the host, with
        `import_state` there. Nothing of the model changes.

        `slots`: which slots of the states (of a paged cache which blocks), in the order in which they are handed over.
        A state of shape (n, …) is n / parts rows for each slot, one slot after the other; in the dictionary it is
        `state.NAME`, (slots, rows, …), in its own dtype. `rows`: only so many first rows of each slot (of a cache:
        tokens), which is all of those states that have fewer; by default all. `parts`: into how many slots the states
        are divided; by default as many as the recipe's range of the input `slots` or `block_table` has, and the spare
        one where that input pads. `about` (bytes) says the rest.

        Weights are not in it: both models have to have equal ones, which nothing checks. Of an artifact for several
        ranks each rank exports its own part. Raises ArgumentError.
        """
        self._refuse_closed()
        with self._alone():
            return taken(self.program, self.state, slots, rows, parts, self.rank)

    def import_state(
        self, exported: Mapping[str, torch.Tensor], slots: Sequence[int], *, parts: int | None = None
    ) -> None:
        """Write what `export_state` of a model with equal weights gave into these slots, in that order; they may be
        others than there. Where it gave all rows of each slot, slots here have to be as long; where it gave `rows`, at
        least so long, and what lies behind them stays.

        All is checked before a byte is written. Raises ArgumentError for the slots, HandoverError where names, dtypes
        or shapes are not those of this model's states, or where they are of a rank at another place of a mesh.
        """
        self._refuse_closed()
        with self._alone():
            for place, value in checked(self.program, self.state, exported, slots, parts, self.rank):
                place.copy_(value)
            self._parts.device.synchronize()

    def load_weights(
        self,
        path: str | Path,
        *,
        strict: bool = True,
        cast: bool = False,
        prefix: str = "",
        rename: Mapping[str, str] | None = None,
    ) -> None:
        """Give the weights the values at `path`, at their addresses: nothing is built or captured again. Calls wait
        until it is done, and see either all the old weights or all the new ones.

        `path`: an artifact of other weights with the same programs (`aotair build --like`), a .safetensors file, or a
        directory of them as Hugging Face lays it out. Its names are the model's, or differ from these by what stands
        before all of them; else `rename` translates them (`{pattern: replacement}`, as `re.sub` takes them), and
        `prefix` is put before each. `strict=False` leaves out names that the model does not have. `cast`: convert
        floating-point tensors of another dtype. Tensors that no checkpoint has (buffers that are not persistent) stay
        as they are; an artifact brings them too.

        All is checked before the first byte is written: names, shapes, dtypes. Then the golden inputs are replayed: an
        artifact's outputs have to agree within its tolerance, those of a checkpoint to be finite. Raises WeightsError,
        or an ArtifactError, where anything fails, or where the file that the weights are mapped from has been written
        to, with the old weights and states back in their places: for that the
        host holds a copy of them meanwhile. On the CPU, where weights are mapped, the model then has pages of its own;
        no file is written to. States get their first values under the new weights, outputs of earlier calls are
        overwritten, and the golden tensors of the artifact that was loaded stay those of its own weights.
        """
        if not isinstance(path, (str, Path)):
            raise ArgumentError(
                "load_weights takes a path",
                got=type(path).__name__,
                expected="an artifact, a .safetensors file or a directory of such files",
                fix="write a state dict with safetensors.torch.save_file, and pass the file's path",
            )
        self._refuse_changed()
        constants = self._resident.constants
        naming = Naming(prefix, rename or {})
        with self.on_all_ranks("reading the weights"):
            weights = read_weights(
                Path(path), self.artifact, self._parts.ops, constants, strict=strict, cast=cast, naming=naming
            )
        if self._party is not None:
            self._party.refuse_unlike("weights", weights.mark, str(path))
        with self._alone():
            self._refuse_closed()
            self._swap(weights)
            self._base = Base({})

    def load_adapter(self, path: str | Path, *, scale: float = 1.0, base: str | Path | None = None) -> None:
        """Add a LoRA adapter to the weights, at their addresses: `W + scale · alpha / rank · B·A`, in float32, rounded
        once to the weight's dtype. Nothing is captured again. An adapter that is there already is taken away first.

        `path`: a directory as PEFT writes it (`adapter_model.safetensors`, `adapter_config.json`). `base`: the
        checkpoint of the weights that the model has now; needed where the adapter changes weights of which the artifact
        stores only what is made of them (merged, int8 or normed ones; the error names them).

        As with `load_weights`, all is checked before a byte is written, calls see all of it or nothing, states begin
        anew, and where anything fails the weights are as before. Adapters of other layers than linear ones, of weights
        that layers share, and with options that compute otherwise are refused by name. Raises WeightsError.
        """
        if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not abs(scale) <= sys.float_info.max:
            raise ArgumentError("load_adapter: scale is no number", got=repr(scale)[:80], expected="a finite number")
        if not isinstance(path, (str, Path)) or not isinstance(base, (str, Path, type(None))):
            raise ArgumentError("load_adapter takes paths", got=f"{path!r} and base={base!r}"[:80])
        if self._party is not None:
            raise WeightsError("adapters are for models of one rank", fix="merge it into the checkpoint, load_weights")
        self._refuse_changed()
        if self.artifact.gate is not None:
            self.artifact.gate.refuse_unsigned(Path(path))
        adapter = read_adapter(Path(path), self.program, float(scale))
        checkpoint = read_base(None if base is None else Path(base), self.artifact, adapter)
        with self._alone():
            self._refuse_closed()
            constants = self._resident.constants
            base_now = self._base.with_copies(adapter.changes(self.program), constants, checkpoint)
            weights = adapted(self.artifact, self._parts.ops, adapter, base_now, constants)
            self._swap(weights)
            self._base = base_now

    def unload_adapter(self) -> None:
        """Take the adapter away: the weights are bit for bit what they were before `load_adapter`; states begin anew.
        Nothing happens where there is none."""
        with self._alone():
            self._refuse_closed()
            if self._base.values:
                self._refuse_changed()
                weights = without_adapter(self.artifact, self._base)
                self._swap(weights)
                self._base = Base({})

    def _swap(self, weights: Weights) -> None:
        began = time.perf_counter()
        swap(self, weights, self._resident)
        self._reloads += 1
        if self._camera is not None:
            self._camera.reloads = self._reloads
        _log.info("%s has other weights, after %.3f s", in_line(self.program.name), time.perf_counter() - began)

    def on_all_ranks(self, what: str) -> contextlib.AbstractContextManager[None]:
        """What is done within succeeds on all ranks that make calls together, or raises on all of them: ranks of other
        replicas (`dp`) take no part."""
        return together(self._party, what)

    def __reduce__(self) -> str:
        raise TypeError("a loaded model holds memory and graphs of its device: load the artifact again instead")

    def _refuse_closed(self) -> None:
        if not self._end.alive:
            raise ClosedError("the model was closed", fix="load it again")

    def _refuse_changed(self) -> None:
        """Raises an ArtifactError where weights that the model reads in the file's pages are others by now."""
        mine = {tensor.data_ptr() for tensor in self._resident.constants}
        if any(tensor.data_ptr() in mine for tensor in self.artifact.constants):
            check_unchanged(self.artifact)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No call runs within, and nothing that was asked of the device is left to do."""
        with self._pools[0].lock, torch.inference_mode():  # pools of one model have one lock
            for pool in self._pools:
                pool.enter()
            self._parts.device.synchronize()
            yield

    @property
    def rank(self) -> int:
        """Which of the ranks that run the artifact together this process is; 0 where there is one."""
        return 0 if self._party is None else self._party.rank

    @property
    def drives(self) -> bool:
        """Whether this rank is the first of those that make each call together: rank 0, or the first of a replica where
        the mesh has an axis along which nothing is said (`dp`)."""
        return self._party is None or self._party.drives

    def driver(self) -> Driver:
        """On the rank that `drives`: what makes calls on all ranks, whose processes wait in `follow`. One message goes
        to each of them for a call, with its inputs."""
        return Driver(self.program, self._ranked("driver"), self._several("driver"))

    def follow(self) -> int:
        """On the other ranks: make the calls that rank 0's `driver` makes, until it is closed; gives how many."""
        return follow(self.program, self._ranked("follow"), self._several("follow"), self.device)

    def _several(self, what: str) -> Party:
        if self._party is None:
            raise ArgumentError(f"{what}() is for artifacts of several ranks", fix="call the model itself")
        return self._party

    def _ranked(self, what: str) -> dict[str, RankedEntry]:
        self._refuse_closed()
        self._several(what)
        return {name: entry for name, entry in self.entry_points.items() if isinstance(entry, RankedEntry)}

    def memory(self) -> MemoryReport:
        """Promised, reserved and used bytes, by what they are for, by pool and by bucket."""
        return memory_report(self._parts, self._resident, self._pools, self.entry_points.values())

    def synchronize(self) -> None:
        """Wait until the device has done all that calls have asked of it; an output is complete then."""
        self._parts.device.synchronize()

    def stats(self) -> Stats:
        """What has been called and captured so far, by bucket."""
        return stats(self.entry_points.values(), self._reloads)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """How long each step of the load took, and each capture."""
        return tuple(self._parts.phases.done)

    def profile(self, *, rounds: int = 20, seconds: float = 2.0) -> "Profile":
        """Measure the calls that are made within: `with model.profile() as p: model(x)`, then `p.table()` and
        `p.trace("trace.json")`.

        The first call of each bucket runs its instructions one by one besides, `rounds` times or for about `seconds`,
        by turns with the replay as it is; states, mutated inputs and answers are as without. Other calls wait for the
        device. Nothing of it lies in the way of calls outside.
        """
        self._refuse_closed()
        if self._party is not None:
            raise ArgumentError("profile() is for models of one rank", fix="use the device's own profiler")
        from .profile.profile import Profile  # a node that measures nothing does not wait for it

        return Profile(self.artifact, self.entry_points, self._parts.phases, rounds=rounds, seconds=seconds)

    def snapshot(self, path: str | Path, /, *args: object, entry: str | None = None, **kwargs: object) -> None:
        """Write the call that these arguments would make to a file: inputs, states as they are now, the entry point
        (`entry`, where there are several), the artifact's digest, versions and the device. Nothing is called, and
        nothing of the model changes.

        The file holds tensors as safetensors and no code; `aotair run ARTIFACT --snapshot FILE` makes the call
        elsewhere, and `aotair debug ARTIFACT --snapshot FILE` looks for where its numbers go wrong. Weights are not in
        it. Raises SnapshotError where the file cannot be written, and a subclass of CallError where the arguments do
        not fit.
        """
        self._refuse_closed()
        if self._party is not None:
            raise ArgumentError("snapshot() is for models of one rank", fix="build the recipe without mesh")
        if entry is not None and entry not in self.entry_points:
            raise ArgumentError("no such entry point", expected=", ".join(self.entry_points), got=repr(entry)[:80])
        from .snapshot.file import write_snapshot
        from .snapshot.take import Camera, copies

        called = (self._only or self._main) if entry is None else self.entry_points[entry]
        camera = Camera(self.artifact, self.device, reloads=self._reloads)
        with self._alone():
            inputs = copies(called, called.checked(args, kwargs))
            states = camera.states(self._resident)
        write_snapshot(path, camera.snapshot(called, inputs, states))

    def close(self) -> None:
        """Give back the memory; calls raise ClosedError from now on. Outputs still held keep theirs alive, and a pool
        that was handed in lives on."""
        self.artifact = Artifact(self.artifact.path, self.program, ())
        self._resident, self._base = Resident(), Base({})
        for entry in self.entry_points.values():
            entry.close()
        self._end()
        if self._party is not None:
            self._party.close()

    # ---- memory -------------------------------------------------------------------------------------------------

    def _pools_for(self, spec: EntryPoint, shared: Pool | None) -> list[Pool]:
        """The pool of each bucket of an entry point."""
        if not self._parts.settings.apart:
            if not self._pools:
                fresh = max(need.fresh for need in self.promise.needs)
                self._pools.append(shared or Pool(self._parts.device, self.program.arena, fresh))
                self._pools[0].reserve(self.program.arena, fresh)
            return [self._pools[0]] * len(spec.buckets)
        mine = []
        for bucket in spec.buckets:
            turns = shared.turns if shared else self._pools[0].turns if self._pools else None
            made = Pool(self._parts.device, _arena_of(self.program, bucket), fresh_bytes(bucket), turns)
            self._pools.append(made)
            mine.append(made)
        return mine

    @property
    def _main(self) -> Entry:
        entries = self.entry_points
        if "forward" in entries:
            return entries["forward"]
        raise ArgumentError("this model has several entry points", expected="a call of one of " + ", ".join(entries))


def _log_load(model: Model) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    parts, name = model._parts, in_line(model.program.name)
    captures = sum(phase.name.startswith("capture ") for phase in parts.phases.done)
    whole = sum(phase.seconds for phase in parts.phases.done if not phase.name.startswith("warm up "))
    steps = ", ".join(f"{step} {parts.phases.seconds(step):.3f}" for step in ("check", "map", "place weights"))
    _log.info("%s loaded on %s in %.3f s (%s), %d captured", name, parts.device.torch_device, whole, steps, captures)


def _met(
    folder: Folder, program: Program, device: Device, settings: Settings, wish: Wish, phases: Phases
) -> Party | None:
    """The ranks of an artifact that is for several, once they have found each other and came with the same."""
    if not program.mesh:
        return None
    if settings.snapshot_on_error is not None:
        raise ArgumentError("snapshot_on_error is for models of one rank", fix="leave it out")
    with phases.phase("meet the other ranks"):
        party = Processes(program, wish, device.kind)
        digest = hashlib.sha256(folder.file(PROGRAM_FILE).content(MOST_PROGRAM_BYTES)).hexdigest()
        options = f"clone_input={settings.clone_input}, capture={settings.capture}, apart={settings.apart}"
        mine = here(digest, mesh_text(program.mesh), device.kind, options, str(torch.__version__), __version__)
        try:
            party.meet(mine)
        except BaseException:
            party.close()
            raise
    return party


def together(party: Party | None, what: str) -> contextlib.AbstractContextManager[None]:
    """What is done within succeeds on all ranks or on none."""
    return contextlib.nullcontext() if party is None else party.all_or_none(what)


def _closes(model: "weakref.ref[Model]") -> Callable[[], None]:
    def close() -> None:
        if (found := model()) is not None:
            found.close()

    return close


def _refuse_threads(settings: Settings, device: Device) -> None:
    if settings.threads is not None and not device.is_host:
        raise ArgumentError(
            "threads= is for the CPU", expected='device="cpu"', got=device.kind, fix="leave threads= out"
        )


def _open_device(name: str | torch.device | None, pool: object, program: Program) -> tuple[Device, Pool | None]:
    """The device to load to, and the pool, which a handle may stand for."""
    if pool is None:
        return open_device(name or program.requirements.device[:_MOST_NAME]), None
    if isinstance(pool, tuple) and len(pool) == 2 and all(type(part) is int for part in pool):
        device = open_device(name or program.requirements.device[:_MOST_NAME])
        return device, pool_of(pool, device)
    if not isinstance(pool, Pool):
        raise ArgumentError(
            "pool is none",
            expected="an aotair.Pool (graph_pool), or a handle of torch.npu.graph_pool_handle()",
            got=repr(pool)[:80],
        )
    if name is not None and open_device(name) is not pool.device:
        raise DeviceError(
            "the pool is on another device",
            expected=str(pool.device.torch_device),
            got=str(name),
            fix="leave out device=",
        )
    return pool.device, pool


def buckets_now(program: Program, capture: str | Sequence[str]) -> list[tuple[EntryPoint, int]]:
    """The buckets to capture now, over all entry points the largest first; none of those whose mutated inputs have yet
    to bring their addresses. Raises ArgumentError for names that no bucket has."""
    _check_names(program, capture)
    found = [
        (entry, number)
        for entry in program.entry_points
        for number in entry.capture_order
        if capture != "lazy" and not any(spec.kind == "mutated" for spec in entry.inputs)
        if capture == "all" or describe(entry, entry.buckets[number].sizes) in capture
    ]
    return sorted(found, key=lambda pair: -pair[0].buckets[pair[1]].height)


def _checked(
    artifact: Artifact,
    device: Device,
    settings: Settings,
    pool: Pool | None,
    wanted: Sequence[tuple[EntryPoint, int]],
    phases: Phases,
) -> Parts:
    """What the model is made of, once the device is known to have the ops, the captures and the memory for it."""
    program, where = artifact.program, str(artifact.path)
    ops = tuple(resolve(op, settings.allowed, where, host=device.is_host) for op in program.ops)
    check_calls(program, ops, settings.allowed, where)
    own_pools = sum(len(e.buckets) for e in program.entry_points) if settings.apart else 0 if pool else 1
    pool_costs = [pool_cost(device, program)] * own_pools
    check_budget(device, pool_costs + [cost(e.buckets[n]) for e, n in wanted], settings.limits, where)
    there = 0 if pool is None or settings.apart else pool.arena.nbytes
    terms = Terms(device.kind, settings.apart, settings.enable_output_clone, there, settings.pack_weights)
    promised = promise(program, terms)
    check_memory(device, promised, program.requirements, settings.memory_budget, where)
    return Parts(program, device, ops, settings, promised, phases)


def _check_names(program: Program, capture: str | Sequence[str]) -> None:
    names = {describe(entry, bucket.sizes) for entry in program.entry_points for bucket in entry.buckets}
    if not isinstance(capture, str) and not set(capture) <= names:
        raise ArgumentError(
            "unknown buckets in capture=",
            expected="'all', 'lazy' or some of " + "; ".join(sorted(names)),
            got="; ".join(sorted(set(capture) - names)),
        )


def _arena_of(program: Program, bucket: Bucket) -> int:
    """The bytes that a bucket's own plan needs, up to the alignment."""
    return -(-bucket.height // program.alignment) * program.alignment


def _camera(artifact: Artifact, device: Device, folder: Path | None) -> "Camera | None":
    """What takes snapshots of calls that fail, where somebody asks for them."""
    if folder is None:
        return None
    from .snapshot.take import Camera

    return Camera(artifact, device.torch_device, folder)


class _Life:
    """What a model and its entry points hold together."""


def _release(graphs: list[Graphs], pools: list[Pool], own: bool, device: Device) -> None:
    for one in graphs:
        one.close()
    for pool in pools if own else ():
        pool.close()
    device.trim()
