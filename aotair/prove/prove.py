"""Every bucket against the original model, run by the runtime itself; and that padding changes nothing."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.artifact.open import Artifact
from aotair_runtime.call.buckets import choose, read_sizes
from aotair_runtime.devices import open_device
from aotair_runtime.errors import ShapeError
from aotair_runtime.format.schema import Bucket, EntryPoint, PaddingProof, Program, Proof
from aotair_runtime.format.sizes import describe, evaluate
from aotair_runtime.format.structure import leaf_names
from aotair_runtime.model import Model
from aotair_runtime.settings import Settings
from aotair_runtime.weights.golden import changes, compare, key

from ..errors import ProofError
from ..graph.resolve import resolved
from ..model.reference import Original
from ..model.samples import Poison, poisoned, poisons, random_inputs, random_states, read_samples
from ..recipe.entry import EntryJob
from ..recipe.job import Job
from .tilts import rounding, tilted, tilts

_FAST_PATH = (
    "torch's encoder layers compute masked sequences in another way when nothing traces them: make them with "
    "enable_nested_tensor=False, or call torch.backends.mha.set_fastpath_enabled(False) in the factory; a mask that "
    "hides a whole sequence makes NaN: say which values it takes with mask: right"
)
Tensors = dict[str, torch.Tensor]
_AS_BUILT: Mapping[str, torch.Tensor] = {}


@dataclass(frozen=True)
class Proved:
    """A program whose buckets carry their proofs, and the golden tensors by name."""

    program: Program
    golden: Mapping[str, torch.Tensor]


def prove(artifact: Artifact, original: torch.nn.Module, job: Job, progress: Callable[[int, int], None]) -> Proved:
    """Raises ProofError at the first bucket that is wrong or whose padding is not neutral. `artifact` is what was
    written: what the build holds in memory may be right where the file is not."""
    program = artifact.program
    golden: dict[str, torch.Tensor] = {}
    total, done, entries = sum(len(entry.buckets) for entry in program.entry_points), 0, []
    # All before the first call: each remembers the first values of the buffers that it puts back.
    originals = [Original(original, one) for one in job.entries]
    with on_host(artifact) as model:
        for one, first, entry in zip(job.entries, originals, program.entry_points, strict=True):
            prover = _Prover(one, entry, model, first, golden)
            proofs = []
            for number, bucket in enumerate(entry.buckets):
                progress(done, total)
                proofs.append(prover.bucket(number, bucket))
                done += 1
            for number, runs in prover.samples():
                proofs[number] = replace(proofs[number], padding=(*proofs[number].padding, *runs))
            buckets = tuple(replace(bucket, proof=proof) for bucket, proof in zip(entry.buckets, proofs))
            entries.append(replace(entry, buckets=buckets))
    progress(total, total)
    return Proved(replace(program, entry_points=tuple(entries)), golden)


def on_host(
    artifact: Artifact,
    *,
    clone_input: bool = True,
    enable_output_clone: bool = True,
    disable_mempool_reuse_in_same_fx: bool = False,
) -> Model:
    """The artifact on this machine's CPU, whatever device it is built for; the options are those of a load, by default
    a recipe's, but that outputs are copies."""
    namespaces = tuple({op.name.partition("::")[0] for op in artifact.program.ops})  # the recipe's own model uses them
    settings = Settings(
        clone_input,
        enable_output_clone,
        disable_mempool_reuse_in_same_fx,
        memory_budget=sys.maxsize,  # the budget is for the node
        allow_namespaces=namespaces,
    )
    return Model(artifact, open_device("cpu"), settings)


@dataclass(frozen=True)
class _Run:
    """What a call left behind: outputs, then mutated inputs, then states, with a name for each."""

    names: list[str]
    tensors: list[torch.Tensor]


class _Prover:
    def __init__(self, job: EntryJob, entry: EntryPoint, model: Model, original: Original, golden: Tensors):
        self._job, self._entry, self._model, self._original, self._golden = job, entry, model, original, golden
        self._mutated = [name for name, item in job.inputs.items() if item.mutated]
        self._output_names = list(leaf_names(entry.structure))

    def bucket(self, number: int, bucket: Bucket) -> Proof:
        sizes = dict(zip(self._job.dims(), bucket.sizes, strict=True))
        inputs = random_inputs(self._job, sizes, number)
        want, got = self._reference(inputs), self._replay(inputs)
        self._refuse_no_numbers(want)
        error = self._compare(want, got, f"bucket {describe(self._entry, bucket.sizes)}")
        self._record(number, inputs, want)
        error = max(error, self._from_other_states(inputs, number, bucket))
        return Proof(error, tuple(self._padding(number, bucket)))

    def _from_other_states(self, inputs: Mapping[str, torch.Tensor], number: int, bucket: Bucket) -> float:
        """The largest error where floating-point states hold random numbers: a cache of zeros hides who reads it."""
        states = random_states(self._model.state, number)
        if not states:
            return 0.0
        want, got = self._reference(inputs, states), self._replay(inputs, states)
        return self._compare(want, got, f"bucket {describe(self._entry, bucket.sizes)}, from random states")

    def samples(self) -> Iterator[tuple[int, list[PaddingProof]]]:
        """Compare on the recipe's real inputs too, through the buckets that calls would take; and padded, in such a
        bucket or the next larger one: its number, and the runs."""
        for sample, inputs in enumerate(read_samples(self._job)):
            want = self._reference(inputs)
            self._compare(want, self._replay(inputs), f"verify.samples, sample {sample}")
            sizes = read_sizes(self._entry, [inputs[spec.name].shape for spec in self._entry.inputs])
            if (number := self._larger(sizes)) is not None:
                yield number, list(self._padded_sample(inputs, sizes, number, f"those of verify.samples, {sample}"))

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
        states = random_states(self._model.state, number)
        want, plain = self._reference(inputs, states), self._replay(inputs, states)
        for turn in range(max(map(len, kinds.values()), default=1)):
            chosen = {name: kind[turn % len(kind)] for name, kind in kinds.items()}
            got = self._cut(self._replay(self._fill(inputs, bucket, chosen, turn), states), sizes)
            yield self._padding_proof(want, plain, got, sizes, bucket, chosen, words)

    # ---- running and comparing --------------------------------------------------------------------------------

    def _reference(self, inputs: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor] = _AS_BUILT) -> _Run:
        inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        try:
            outputs, buffers = self._original(inputs, states), self._original.buffers()
        except Exception as error:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
            raise ProofError(
                f"the original model fails at sizes that a bucket would serve: {type(error).__name__}: {error}",
                where=self._job.where,
                expected="a model that takes all sizes up to its buckets'",
                got=shapes,
                fix="give every size that it takes its bucket and remove pad:, let the model take smaller ones, or say "
                "which is the smallest: dimensions: {NAME: {min: SIZE}}",
            ) from error
        return self._run(outputs, inputs, {name: resolved(buffers[name]).clone() for name in self._model.state})

    def _replay(self, inputs: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor] = _AS_BUILT) -> _Run:
        inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        self._model.reset_state()
        for name, value in states.items():
            self._model.state[name].copy_(value)
        outputs = self._model.entry_points[self._entry.name].flat([inputs[spec.name] for spec in self._entry.inputs])
        return self._run(outputs, inputs, {name: tensor.clone() for name, tensor in self._model.state.items()})

    def _run(self, outputs: Sequence[torch.Tensor], inputs: Tensors, states: Tensors) -> _Run:
        names = self._output_names + [f"input {n}" for n in self._mutated] + [f"state {n}" for n in states]
        return _Run(names, [*outputs, *(inputs[name] for name in self._mutated), *states.values()])

    def _refuse_no_numbers(self, want: _Run) -> None:
        """Raises ProofError where the original answers NaN alone: whatever is compared with that agrees."""
        for name, tensor in zip(want.names[: len(self._output_names)], want.tensors):
            if tensor.numel() and bool(tensor.isnan().all()):
                raise ProofError(
                    f"the original model's output {name!r} is NaN throughout, which proves nothing",
                    where=self._job.where,
                    expected="numbers, for inputs within their ranges",
                    got="NaN alone, for random inputs",
                    fix="say under inputs in which range the model's inputs lie",
                )

    def _compare(self, want: _Run, got: _Run, where: str) -> float:
        """The largest error; raises ProofError where one is beyond the recipe's tolerance."""
        largest, (atol, rtol) = 0.0, self._job.tolerance
        for name, wanted, gotten in zip(want.names, want.tensors, got.tensors, strict=True):
            error, within = compare(gotten, wanted, atol, rtol)
            largest = max(largest, error)
            if not within:
                raise ProofError(
                    f"{where}: the output {name!r} is not the original model's",
                    where=self._job.where,
                    expected=f"within atol {atol:g} and rtol {rtol:g}",
                    got=f"an error of {error:.3g}",
                    fix=_FAST_PATH
                    if self._original.has_fast_path()
                    else "loosen verify if that is what the dtype "
                    "allows (a fused op rounds elsewhere); else it is a fault of aotair or of a pass: --stop-after and "
                    "--max-rewrites find it",
                )
        return largest

    def _record(self, number: int, inputs: Mapping[str, torch.Tensor], want: _Run) -> None:
        entry, golden = self._entry.name, self._golden
        for name, tensor in inputs.items():
            golden[key(entry, number, "in", name)] = tensor
        count = len(self._entry.outputs)
        for i, tensor in enumerate(want.tensors[:count]):
            golden[key(entry, number, "out", i)] = tensor
        rest = [("after", name) for name in self._mutated] + [("state", name) for name in self._model.state]
        self._model.reset_state()
        before = {("after", name): inputs[name] for name in self._mutated}
        before |= {("state", name): tensor for name, tensor in self._model.state.items()}
        for (side, name), tensor in zip(rest, want.tensors[count:], strict=True):
            golden.update(changes(key(entry, number, side, name), before[side, name], tensor))

    # ---- padding ------------------------------------------------------------------------------------------------

    def _padding(self, number: int, bucket: Bucket) -> Iterator[PaddingProof]:
        items = self._job.inputs_at(dict(zip(self._job.dims(), bucket.sizes)))
        kinds = {n: poisons(item) for n, item in items.items() if item.pad == "any"}
        neutral: dict[tuple[tuple[int, ...], int], tuple[_Run, _Run]] = {}
        for turn, (sizes, tilt) in enumerate(self._turns(number, bucket, max(map(len, kinds.values()), default=1))):
            by_dim = dict(zip(self._job.dims(), sizes, strict=True))
            real, words = tilted(self._job.inputs_at(by_dim), random_inputs(self._job, by_dim, number), tilt)
            states = random_states(self._model.state, number)
            if (sizes, tilt) not in neutral:
                neutral[sizes, tilt] = (self._reference(real, states), self._replay(real, states))
            want, plain = neutral[sizes, tilt]
            chosen = {name: kind[turn % len(kind)] for name, kind in kinds.items()}
            got = self._cut(self._replay(self._fill(real, bucket, chosen, turn), states), sizes)
            yield self._padding_proof(want, plain, got, sizes, bucket, chosen, words)

    def _padding_proof(
        self,
        want: _Run,
        plain: _Run,
        got: _Run,
        sizes: tuple[int, ...],
        bucket: Bucket,
        chosen: Mapping[str, Poison],
        words: str,
    ) -> PaddingProof:
        """Of the run `got`, with `plain` as the runtime pads; raises ProofError where either is not `want`."""
        for run in (plain, got):
            self._check_padding(want, run, sizes, bucket, chosen, words)
        error = max((compare(g, w, 0, 0)[0] for w, g in zip(want.tensors, got.tensors)), default=0.0)
        same = all(compare(g, p, 0, 0)[1] for p, g in zip(plain.tensors, got.tensors))
        text = ", ".join(f"{name}={value}" for name, value in chosen.items()) or "the declared values"
        return PaddingProof(sizes, f"{text}; real values: {words}" if words else text, error, same)

    def _turns(self, number: int, bucket: Bucket, poisons: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Real sizes and the number of a tilt for each run: values as they come along each dimension, then the others
        along all dimensions at once, in turn with the smallest sizes and one short of the bucket's; at least as many as
        there are poisons."""
        along, together = self._reduced_sizes(number, bucket)
        runs = [(sizes, 0) for sizes in along]
        if together:
            tried = len(tilts(self._job.inputs_at(dict(zip(self._job.dims(), bucket.sizes)))))
            count = max(tried - 1, poisons - len(runs))
            runs += [(together[k % len(together)], k % tried) for k in range(1, count + 1)]
        yield from runs

    def _reduced_sizes(self, number: int, bucket: Bucket) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Sizes of calls that this bucket would serve with padding: the smallest along each dimension; and along all of
        them at once, the smallest, and one less than the bucket's."""
        along: list[tuple[int, ...]] = []
        smallest, short = list(bucket.sizes), list(bucket.sizes)
        for axis, dim in enumerate(self._entry.dims):
            if dim.paddable:
                below = [b.sizes[axis] for b in self._entry.buckets if b.sizes[axis] < bucket.sizes[axis]]
                smallest[axis] = max(max(below, default=0) + 1, dim.least)
                short[axis] = max(smallest[axis], bucket.sizes[axis] - 1)
                along.append((*bucket.sizes[:axis], smallest[axis], *bucket.sizes[axis + 1 :]))
        fits = lambda sizes: sizes != bucket.sizes and self._serves(number, sizes)  # noqa: E731
        together = dict.fromkeys((tuple(smallest), tuple(short)))
        return list(filter(fits, dict.fromkeys(along))), list(filter(fits, together)) or list(filter(fits, along))

    def _serves(self, number: int, sizes: tuple[int, ...]) -> bool:
        try:
            return choose(self._entry, sizes) == number
        except ShapeError:
            return False

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

    def _cut(self, run: _Run, sizes: Sequence[int]) -> _Run:
        outputs = []
        for tensor, spec in zip(run.tensors, self._entry.outputs):
            shape = [evaluate(expr, sizes) for expr in spec.shape]
            outputs.append(tensor[tuple(slice(0, size) for size in shape)])
        return _Run(run.names, outputs + run.tensors[len(outputs) :])

    def _check_padding(
        self,
        want: _Run,
        got: _Run,
        sizes: tuple[int, ...],
        bucket: Bucket,
        chosen: Mapping[str, Poison],
        words: str,
    ) -> None:
        atol, rtol = (tolerance * rounding(self._job.inputs, words) for tolerance in self._job.tolerance)
        changed = []
        for name, wanted, gotten in zip(want.names, want.tensors, got.tensors, strict=True):
            error, within = compare(gotten, wanted, atol, rtol)
            if not within:
                changed.append(f"{name} (error {error:.3g})")
        if not changed:
            return
        padded = [d.name for d, have, real in zip(self._entry.dims, bucket.sizes, sizes) if real < have]
        inputs = [n for n, item in self._job.inputs.items() if item.pad is not None and set(padded) & set(item.shape)]
        filled = [f"{n} filled with {chosen.get(n, self._job.inputs[n].fill)}" for n in inputs]
        raise ProofError(
            f"padding the dimension {' and '.join(padded)} of the input {', '.join(inputs)} changes the outputs",
            where=f"{self._job.where}: bucket {describe(self._entry, bucket.sizes)}",
            expected=f"the original's outputs at {describe(self._entry, sizes)}, "
            f"within atol {atol:g} and rtol {rtol:g}",
            got=f"{', '.join(changed)} changed, with {', '.join(filled)}"
            + (f", real values: {words}" if words else ""),
            fix="declare the value that the model ignores (pad: 0, say), mask the padding in the model, or remove pad: "
            "and give every size its bucket",
        )
