"""Every bucket against the original model, run by the runtime itself; and that padding changes nothing."""

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.artifact.asked import Asked
from aotair_runtime.artifact.checkpoint import some
from aotair_runtime.artifact.open import Artifact, open_artifact
from aotair_runtime.call.buckets import read_sizes
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.devices import open_device
from aotair_runtime.format.mesh import mesh_text, part_of, parts_of, ranks_of
from aotair_runtime.format.schema import Bucket, PaddingProof, Program, Proof, Tolerance
from aotair_runtime.format.sizes import describe
from aotair_runtime.model import Model
from aotair_runtime.settings import Settings
from aotair_runtime.weights.golden import changes, key, state_part, state_shard

from ..errors import ProofError, UnsupportedError
from ..model.reference import Original
from ..model.samples import Poison, poisoned, poisons, random_inputs, real_inputs
from ..model.written import Written
from ..recipe.job import Job
from ..share import one_thread, shared_out
from .apart import Apart, Seen, apart, least
from .lived import Lived
from .reduced import reduced_sizes
from .replicas import Others, random_others
from .runs import Run, Runner
from .tilts import rounding, tilted, tilts
from .together import AllRanks

_FAST_PATH = (
    "torch's encoder layers compute masked sequences in another way when nothing traces them: make them with "
    "enable_nested_tensor=False, or call torch.backends.mha.set_fastpath_enabled(False) in the factory; a mask that "
    "hides a whole sequence makes NaN: say which values it takes with mask: right"
)
_SHARED_OUT = (
    "look at parallel: between a colwise and a rowwise layer each number may depend on numbers of its own rank alone "
    "(no softmax, norm or chunk over all of them), and in a module of sequence on those of its own row; a module of "
    "experts computes num_experts of them, from first_expert on; built without mesh, the model shows whether anything "
    "else is wrong"
)
_OTHERS = "; where another rank's inputs are larger, a call runs in a larger bucket, which has to be right for it"
Tensors = dict[str, torch.Tensor]
_EXACT = Tolerance(0.0, 0.0)
_SAMPLED = 2  # padded runs of a bucket, where not all are asked for
_LARGE = 1 << 30  # bytes of weights
_WORTH = 0.2  # seconds that a bucket takes to be worth another process


@dataclass(frozen=True)
class Proved:
    """A program whose buckets carry their proofs, and the golden tensors by name."""

    program: Program
    golden: Mapping[str, torch.Tensor]


def prove(
    artifact: Artifact,
    original: torch.nn.Module,
    job: Job,
    progress: Callable[[int, int], None],
    jobs: int = 1,
    stages: Mapping[str, Sequence[str]] | None = None,
) -> Proved:
    """In so many processes, of a large model in one. Raises ProofError at the first bucket that is wrong or whose
    padding is not neutral. `artifact` is what was written: what the build holds in memory may be right where the file
    is not. `stages`: what the original calls the tensors that ranks have one behind the other (`Split.stages`).

    First every bucket is called once, as the model was built; what that writes into states says how these look in life,
    and from such ones every bucket is called again, and padded. How far the original moves its own answers is asked at
    the largest one, and again where an answer is further off. With `verify: {level: sampled}` that is done for the
    smallest and the largest bucket of each entry point alone, and with fewer poisons.
    """
    # All before the first call: each remembers the first values of the buffers that it puts back.
    first = Original(original, job.entries[0])
    originals = [Original(original, one, like=first, together=stages) for one in job.entries]
    large = is_large(original)
    with contextlib.nullcontext() if large else one_thread(), _called(artifact, job) as model:
        provers = [
            _Prover(Runner(one, entry, model, called), job.sampled)
            for one, called, entry in zip(job.entries, originals, artifact.program.entry_points, strict=True)
        ]
        steps = [(prover, number) for prover in provers for number in range(len(prover.buckets))]
        found = _proved(artifact.program, steps, progress, 1 if large else jobs)
    first.reset()  # the next program is proved against the model as it was built, too
    return found


def is_large(model: torch.nn.Module) -> bool:
    """Whether a call keeps all cores busy by itself, and one at a time takes memory enough."""
    return sum(parameter.nbytes for parameter in model.parameters()) > _LARGE


def _proved(
    program: Program, steps: Sequence[tuple["_Prover", int]], progress: Callable[[int, int], None], jobs: int
) -> Proved:
    total = 2 * len(steps)
    calls = [functools.partial(prover.as_built, number) for prover, number in steps]
    progress(0, total)
    begin = time.perf_counter()
    built = [calls[0]()]
    jobs = jobs if time.perf_counter() - begin > _WORTH else 1
    built += shared_out(calls[1:], jobs, lambda begun: progress(begun + 1, total))
    states = _lived(built, steps[0][0])
    provers = list(dict.fromkeys(prover for prover, _ in steps))
    for prover in provers:
        prover.states = states
        prover.known = least(one.seen for (theirs, _), one in zip(steps, built) if theirs is prover)
    samples = [(prover, sample) for prover in provers for sample in prover.samples()]
    tasks = [functools.partial(prover.in_life, number) for prover, number in steps]
    tasks += [functools.partial(prover.sample, *sample) for prover, sample in samples]
    shown = shared_out(tasks, jobs, lambda begun: progress(min(begun + len(steps), total), total))
    progress(total, total)
    proofs = {step: one.proof for step, one in zip(steps, built)}
    shown_of = [prover for prover, _ in (*steps, *samples)]
    for prover in provers:
        first = [one.proved for (theirs, _), one in zip(steps, built) if theirs is prover]
        prover.refuse_unproved(first + [one.proved for theirs, one in zip(shown_of, shown) if theirs is prover])
    for prover, one in zip(shown_of, shown, strict=True):
        if one.number is not None:
            proofs[prover, one.number] = one.added_to(proofs[prover, one.number])
    golden = {name: tensor for one in built for name, tensor in one.golden.items()}
    return Proved(_with_proofs(program, list(proofs.values())), golden)


def _lived(built: Sequence["_AsBuilt"], prover: "_Prover") -> Tensors:
    """Random states, such as the calls from the states as built have left."""
    lived = Lived()
    for one in built:
        for name, rows in one.wrote.items():
            lived.saw(name, *rows)
    return lived.states(prover.runner.model.state)


def _with_proofs(program: Program, proofs: Sequence[Proof]) -> Program:
    left, entries = iter(proofs), []
    for entry in program.entry_points:
        buckets = tuple(replace(bucket, proof=next(left)) for bucket in entry.buckets)
        entries.append(replace(entry, buckets=buckets))
    return replace(program, entry_points=tuple(entries))


def on_host(artifact: Artifact, allowed: Allowed, **options: bool) -> Model:
    """The artifact on this machine's CPU, whatever device it is built for, where loads allow what the recipe does; the
    `options` are those of `host_settings`. Raises UnsupportedError where it is for several ranks."""
    if artifact.program.mesh:
        raise UnsupportedError(
            "artifacts for several ranks cannot be looked into so far",
            where=str(artifact.path),
            expected="one rank",
            got=mesh_text(artifact.program.mesh),
            fix="build the recipe without mesh: the same passes run over the whole model",
        )
    return Model(artifact, open_device("cpu"), host_settings(allowed, **options))


def all_on_host(artifact: Artifact, allowed: Allowed, **options: bool) -> Model | AllRanks:
    """The same; of an artifact for several ranks all of them, together."""
    if not artifact.program.mesh:
        return on_host(artifact, allowed, **options)
    return _all_ranks(artifact, host_settings(allowed, **options))


def _called(artifact: Artifact, job: Job) -> Model | AllRanks:
    """The same for the calls of a proof, in which ranks with inputs of their own are not all called alike."""
    if not artifact.program.mesh:
        return on_host(artifact, job.target.allowed)
    return _all_ranks(artifact, host_settings(job.target.allowed), random_others(job.entries))


def _all_ranks(artifact: Artifact, settings: Settings, called: Others | None = None) -> AllRanks:
    asked = Asked(artifact.program.mesh)
    others = [open_artifact(artifact.path, rank, asked) for rank in range(1, ranks_of(artifact.program.mesh))]
    return AllRanks([artifact, *others], settings, called)


def host_settings(
    allowed: Allowed,
    *,
    clone_input: bool = True,
    enable_output_clone: bool = True,
    disable_mempool_reuse_in_same_fx: bool = False,
) -> Settings:
    """Options of a load, by default a recipe's, but that outputs are copies."""
    return Settings(
        clone_input,
        enable_output_clone,
        disable_mempool_reuse_in_same_fx,
        memory_budget=sys.maxsize,  # the budget is for the node
        allowed=allowed,
    )


@dataclass(frozen=True)
class _AsBuilt:
    """What a bucket's call from the states as built has shown, what of it is golden, the rows that it wrote into
    states, before and after, how far the original moves what it leaves behind, and of how much of that something was
    proved."""

    proof: Proof
    golden: Mapping[str, torch.Tensor]
    wrote: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    seen: Mapping[str, Seen]
    proved: frozenset[str]


@dataclass(frozen=True)
class _Shown:
    """What other calls have shown of a bucket; of none, where its number is None."""

    number: int | None = None
    error: float = 0.0
    units: float = 0.0
    padding: tuple[PaddingProof, ...] = ()
    proved: frozenset[str] = frozenset()

    def added_to(self, proof: Proof) -> Proof:
        return replace(
            proof,
            max_abs_error=max(proof.max_abs_error, self.error),
            units=max(proof.units, self.units),
            padding=(*proof.padding, *self.padding),
        )


def _sample(runs: Sequence[tuple[tuple[int, ...], int]]) -> Sequence[tuple[tuple[int, ...], int]]:
    """The last runs, of which one has the smallest sizes that there are."""
    found = list(runs[-_SAMPLED:])
    if runs and (least := min(runs, key=lambda run: run[0])[0]) not in [sizes for sizes, _ in found]:
        found[0] = next(run for run in reversed(runs) if run[0] == least)
    return found


class _Prover:
    """Of one entry point. `states` are those from which calls are made as in life, `known` is how far the original
    was seen to move before."""

    def __init__(self, runner: Runner, sampled: bool):
        self.runner, self._sampled = runner, sampled
        self._job, self._entry, self._model = runner.job, runner.entry, runner.model
        self.buckets = self._entry.buckets
        self.states: Tensors = {}
        self.known: Mapping[str, Seen] = {}

    def as_built(self, number: int) -> _AsBuilt:
        """One call of a bucket from the states as they were built; it is golden."""
        bucket = self.buckets[number]
        inputs = random_inputs(self._job, dict(zip(self._job.dims(), bucket.sizes, strict=True)), number)
        want, got = self.runner.reference(inputs), self.runner.replay(inputs)
        self._refuse_no_numbers(want)
        once = number == len(self.buckets) - 1 and not self._sampled
        found = self._compare(want, got, f"bucket {describe(self._entry, bucket.sizes)}", ask=once)
        proof = Proof(found.error, (), found.units, self._sampled)
        wrote = {name: written.changed() for name, written in want.states.items()}
        return _AsBuilt(proof, self._golden(number, inputs, want, found), wrote, found.seen, found.proved)

    def in_life(self, number: int) -> _Shown:
        """A call from states as calls leave them: a cache of zeros hides who reads it. And what padding does."""
        if self._sampled and number not in (0, len(self.buckets) - 1):
            return _Shown()
        bucket, found = self.buckets[number], Apart()
        if self.states:
            inputs = random_inputs(self._job, dict(zip(self._job.dims(), bucket.sizes, strict=True)), number)
            want, got = self.runner.reference(inputs, self.states), self.runner.replay(inputs, self.states)
            found = self._compare(want, got, f"bucket {describe(self._entry, bucket.sizes)}, from random states")
        return _Shown(number, found.error, found.units, tuple(self._padding(number, bucket)), found.proved)

    def samples(self) -> list[tuple[str, Tensors]]:
        """The recipe's real inputs, and where each is from."""
        return list(real_inputs(self._job))

    def sample(self, source: str, inputs: Tensors) -> _Shown:
        """Compare on real inputs too, through the bucket that a call would take; and padded, in such a bucket or the
        next larger one."""
        want = self.runner.reference(inputs)
        proved = self._compare(want, self.runner.replay(inputs), source).proved
        sizes = read_sizes(self._entry, [inputs[spec.name].shape for spec in self._entry.inputs])
        if (number := self._larger(sizes)) is None:
            return _Shown(proved=proved)
        padded = tuple(self._padded_sample(inputs, sizes, number, f"those of {source}"))
        return _Shown(number, padding=padded, proved=proved)

    def _larger(self, sizes: tuple[int, ...]) -> int | None:
        """The smallest bucket in which a call of these sizes is padded, or None."""
        dims, fitting = self._entry.dims, []
        for number, bucket in enumerate(self._entry.buckets):
            pairs = list(zip(dims, bucket.sizes, sizes))
            if bucket.sizes != sizes and all(h >= w if dim.paddable else h == w for dim, h, w in pairs):
                fitting.append((math.prod(bucket.sizes), number))
        return min(fitting)[1] if fitting else None

    def _padded_sample(
        self, inputs: Mapping[str, torch.Tensor], sizes: tuple[int, ...], number: int, words: str
    ) -> Iterator[PaddingProof]:
        items, bucket = self._job.inputs_at(dict(zip(self._job.dims(), sizes))), self._entry.buckets[number]
        kinds = {name: poisons(item) for name, item in items.items() if item.pad == "any"}
        want, plain = self._unpadded(inputs)
        for turn in range(max(map(len, kinds.values()), default=1)):
            chosen = {name: kind[turn % len(kind)] for name, kind in kinds.items()}
            filled = self._fill(inputs, bucket, chosen, turn)
            yield self._padding_proof(want, plain, filled, sizes, number, chosen, words)

    def _unpadded(self, inputs: Mapping[str, torch.Tensor]) -> tuple[Run, Run]:
        """What the original leaves behind, and what the artifact does with inputs that are padded as it pads."""
        want = self.runner.reference(inputs, self.states)
        return want, self.runner.replay(inputs, self.states).shared(want)

    # ---- comparing ------------------------------------------------------------------------------------------

    def _refuse_no_numbers(self, want: Run) -> None:
        """Raises ProofError where the original answers NaN alone: whatever is compared with that agrees."""
        for name, tensor in zip(want.names[: len(self.runner.outputs)], want.tensors):
            if tensor.numel() and bool(tensor.isnan().all()):
                raise ProofError(
                    f"the original model's output {name!r} is NaN throughout, which proves nothing",
                    where=self._job.where,
                    expected="numbers, for inputs within their ranges",
                    got="NaN alone, for random inputs",
                    fix="say under inputs in which range the model's inputs lie",
                )

    def refuse_unproved(self, calls: Iterable[frozenset[str]]) -> None:
        """Raises ProofError where there is something of which none of the calls has proved anything."""
        left = {*self.runner.names(), *(f"state {item.name}" for item in self._model.program.state)}
        if unproved := sorted(left.difference(*calls)):
            raise ProofError(
                f"nothing is proved of {some(unproved)}: rounding moves the original itself too far",
                where=self._job.where,
                expected="a call in which that moves it by less than a fortieth of its greatest number",
                got=f"more in all calls, with {'real inputs' if self.samples() else 'random inputs'}",
                fix="give inputs for which the model's answers mean something in verify.samples or verify.prompts, or "
                "build it in a wider dtype",
            )

    def _compare(self, want: Run, got: Run, where: str, ask: bool = False) -> Apart:
        """How far a run is from the original's; raises ProofError where that is beyond the recipe's tolerance."""
        found = apart(want, got, self._job.tolerance, self.known, ask)
        for name, wrong in found.wrong.items():
            raise ProofError(
                f"{where}: the output {name!r} is not the original model's",
                where=self._job.where,
                expected=wrong.expected,
                got=f"an error of {wrong.error:.3g} ({wrong.units:.3g} units in the last place)",
                fix=_SHARED_OUT
                if self._model.program.mesh
                else _FAST_PATH
                if self.runner.original.has_fast_path()
                else "loosen verify if that is what the dtype "
                "allows (a fused op rounds elsewhere); else it is a fault of aotair or of a pass: aotair debug "
                "finds it",
            )
        return found

    def _golden(self, number: int, inputs: Tensors, want: Run, found: Apart) -> Tensors:
        """What is stored of a call: its inputs, and what the original left behind."""
        entry, count = self._entry.name, len(self._entry.outputs)
        mutated = self.runner.mutated
        golden = {key(entry, number, "in", name): tensor for name, tensor in inputs.items()}
        golden |= {key(entry, number, "out", i): tensor for i, tensor in enumerate(want.tensors[:count])}
        for name, tensor in zip(mutated, want.tensors[count:], strict=True):
            golden |= changes(key(entry, number, "after", name), inputs[name], tensor)
        for name, written in want.states.items():
            golden |= self._golden_state(number, name, written)
        places: list[tuple[str, str, object]] = [(want.names[i], "out", i) for i in range(count)]
        places += [(want.names[count + i], "after", name) for i, name in enumerate(mutated)]
        places += [(f"state {name}", "state", own) for name in want.states for own in self._parts(name)]
        for name, side, place in places:
            if name in found.slack:
                slack = torch.tensor(found.slack[name], dtype=torch.float64)
                golden[f"{key(entry, number, side, place)}.slack"] = slack
        return golden

    def _golden_state(self, number: int, name: str, written: Written) -> Tensors:
        """What is stored of a state that a call has `written`: of one that ranks share out, each part."""
        shard = state_shard(self._model.program, name)
        stored = functools.partial(key, self._entry.name, number, "state")
        if shard is None:
            return written.golden(stored(name))
        golden, after = dict[str, torch.Tensor](), written.whole()
        for part, own in enumerate(self._parts(name)):
            golden |= changes(stored(own), part_of(written.before, shard, part), part_of(after, shard, part))
        return golden

    def _parts(self, name: str) -> list[str]:
        """What the golden tensors call a state, or each part of one that ranks share out."""
        shard = state_shard(self._model.program, name)
        return [name] if shard is None else [state_part(name, part) for part in range(parts_of(shard))]

    # ---- padding ------------------------------------------------------------------------------------------------

    def _padding(self, number: int, bucket: Bucket) -> Iterator[PaddingProof]:
        items = self._job.inputs_at(dict(zip(self._job.dims(), bucket.sizes)))
        kinds = {n: poisons(item) for n, item in items.items() if item.pad == "any"}
        neutral: dict[tuple[tuple[int, ...], int], tuple[Run, Run]] = {}
        turns = list(self._turns(number, bucket, max(map(len, kinds.values()), default=1)))
        for turn, (sizes, tilt) in enumerate(turns):
            by_dim = dict(zip(self._job.dims(), sizes, strict=True))
            real, words = tilted(self._job.inputs_at(by_dim), random_inputs(self._job, by_dim, number), tilt)
            if (sizes, tilt) not in neutral:
                neutral[sizes, tilt] = self._unpadded(real)
            want, plain = neutral[sizes, tilt]
            if (sizes, tilt) not in turns[turn + 1 :]:
                del neutral[sizes, tilt]
            chosen = {name: kind[turn % len(kind)] for name, kind in kinds.items()}
            yield self._padding_proof(want, plain, self._fill(real, bucket, chosen, turn), sizes, number, chosen, words)

    def _padding_proof(
        self,
        want: Run,
        plain: Run,
        filled: Tensors,
        sizes: tuple[int, ...],
        number: int,
        chosen: Mapping[str, Poison],
        words: str,
    ) -> PaddingProof:
        """Of a run with these `filled` inputs, with `plain` as the runtime pads; raises ProofError where either is not
        `want`."""
        bucket = self.buckets[number]
        got = self.runner.replay(filled, self.states).cut(self._entry, sizes)
        found = self._check_padding(want, plain, sizes, bucket, chosen, words)
        identical = not apart(plain, got, _EXACT).wrong
        if not identical:
            found = self._check_padding(want, got, sizes, bucket, chosen, words)
        text = ", ".join(f"{name}={value}" for name, value in chosen.items()) or "the declared values"
        text = f"{text}; real values: {words}" if words else text
        return PaddingProof(sizes, text, found.error, identical, found.units)

    def _turns(self, number: int, bucket: Bucket, poisons: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Real sizes and the number of a tilt for each run: values as they come along each dimension, then the others
        along all dimensions at once, in turn with the smallest sizes and one short of the bucket's; at least as many as
        there are poisons."""
        along, together = reduced_sizes(self._entry, number, self._has_own_inputs)
        runs = [(sizes, 0) for sizes in along]
        if together:
            tried = len(tilts(self._job.inputs_at(dict(zip(self._job.dims(), bucket.sizes)))))
            count = max(tried - 1, poisons - len(runs))
            runs += [(together[k % len(together)], k % tried) for k in range(1, count + 1)]
        yield from _sample(runs) if self._sampled else runs

    @property
    def _has_own_inputs(self) -> bool:
        return bool(self.runner.model.program.own_inputs)

    def _fill(
        self, real: Mapping[str, torch.Tensor], bucket: Bucket, chosen: Mapping[str, Poison], stream: int
    ) -> dict[str, torch.Tensor]:
        """The bucket's whole inputs: real values, and outside them the chosen poison or the declared pad value."""
        by_dim = dict(zip(self._job.dims(), bucket.sizes, strict=True))
        whole = {}
        for name, item in self._job.inputs_at(by_dim).items():
            shape = item.shape_at(by_dim)
            if list(real[name].shape) == shape:
                whole[name] = real[name]
            else:
                poison = chosen.get(name, item.fill)
                assert poison is not None and poison != "any", "what is never padded has its shape; any is chosen"
                whole[name] = poisoned(item, real[name], shape, poison, stream)
        return whole

    def _check_padding(
        self,
        want: Run,
        got: Run,
        sizes: tuple[int, ...],
        bucket: Bucket,
        chosen: Mapping[str, Poison],
        words: str,
    ) -> Apart:
        tolerance, far = self._job.tolerance, rounding(self._job.inputs, words)
        tolerance = replace(tolerance, atol=tolerance.atol * far, rtol=tolerance.rtol * far)
        found = apart(want, got, tolerance, self.known)
        if not found.wrong:
            return found
        first = next(iter(found.wrong.values()))
        changed = [
            f"{name} (error {wrong.error:.3g}, {wrong.units:.3g} units in the last place)"
            for name, wrong in found.wrong.items()
        ]
        padded = [d.name for d, have, real in zip(self._entry.dims, bucket.sizes, sizes) if real < have]
        inputs = [n for n, item in self._job.inputs.items() if item.pad is not None and set(padded) & set(item.shape)]
        filled = [f"{n} filled with {chosen.get(n, self._job.inputs[n].fill)}" for n in inputs]
        raise ProofError(
            f"padding the dimension {' and '.join(padded)} of the input {', '.join(inputs)} changes the outputs",
            where=f"{self._job.where}: bucket {describe(self._entry, bucket.sizes)}",
            expected=f"the original's outputs at {describe(self._entry, sizes)}, {first.expected}",
            got=f"{', '.join(changed)} changed, with {', '.join(filled)}"
            + (f", real values: {words}" if words else ""),
            fix="declare the value that the model ignores (pad: 0, say), mask the padding in the model, or remove pad: "
            "and give every size its bucket" + (_OTHERS if self._has_own_inputs else ""),
        )
