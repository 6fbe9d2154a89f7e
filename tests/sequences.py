"""Random sequences of calls: several models, pools, options, buckets and threads, whose inputs are fresh tensors, held
outputs, and views of outputs, inputs, buffers and states. Every call is compared with an eager one on clones."""

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from nodes import Node
from once import made_once
from sequence_models import RECIPES

import aotair
from aotair.model.load import load_model
from aotair.model.reference import Original
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.devices import open_device
from aotair_runtime.errors import ArgumentError, ShapeError
from aotair_runtime.memory.overlap import meet, span
from aotair_runtime.model import Model
from aotair_runtime.settings import settle
from aotair_runtime.weights.compared import compare

CALLS = 8
DTYPES = {"float32": torch.float32, "int64": torch.int64}


@functools.cache
def opened(name: str, node: Node):
    """The artifact of one of RECIPES for a device."""
    recipe = RECIPES[name] | {"target": {"device": node.kind}}
    with torch.device("cpu"):
        path = node.folder / "sequences" / f"{name}.aotair"
        return open_artifact(made_once(path, lambda out: aotair.build(recipe, out)))


def load(name: str, node: Node, **options: object) -> Model:
    """One of RECIPES on a device."""
    pool = options.pop("pool", None)
    artifact = opened(name, node)
    return Model(artifact, open_device(node.kind), settle(artifact.program.options, **options), pool)


@functools.cache
def original(name: str, entry: str) -> Original:
    parsed = job_of(parse_recipe(RECIPES[name]))
    with torch.device("cpu"):
        model = load_model(parsed)
        return Original(model, next(one for one in parsed.entries if one.entry == entry))


@dataclass
class Loaded:
    """A model, how it was loaded, and whether what it returns is the caller's to keep."""

    name: str
    model: Model
    options: dict
    pool: str


@dataclass
class Kept:
    """An output that somebody holds, and what it has to be as long as nobody may overwrite it."""

    tensor: torch.Tensor
    loaded: Loaded
    bucket: tuple
    value: torch.Tensor | None
    own: bool


@dataclass
class Sequence:
    """One sequence of calls, determined by its seed; `said` tells what was done, for whoever has to mend it."""

    seed: int
    node: Node
    schedule: Callable[[int], contextlib.AbstractContextManager]
    said: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    seen: list[torch.Tensor] = field(default_factory=list)

    def run(self) -> str:
        """What was wrong, or nothing."""
        self.random = random.Random(self.seed)
        self.numbers = torch.Generator().manual_seed(self.seed)
        with contextlib.ExitStack() as stack:
            pools = {name: aotair.graph_pool(self.node.kind) for name in ("first", "second")}
            self.models = [self._load(pools, stack) for _ in range(self.random.randint(1, 3))]
            for number in range(CALLS):
                with self.schedule(self.seed * CALLS + number):
                    wrong = self._call()
                if wrong:
                    return f"sequence {self.seed}, call {number}: {wrong}\n" + "\n".join(self.said)
        return ""

    def _load(self, pools: dict, stack: contextlib.ExitStack) -> Loaded:
        choose, name = self.random.choice, self.random.choice(sorted(RECIPES))
        artifact = opened(name, self.node)
        names = [n for buckets in _bucket_names(artifact).values() for n in buckets]
        options = {
            "clone_input": choose([None, None, False]),
            "enable_output_clone": choose([None, None, True]),
            "disable_mempool_reuse_in_same_fx": choose([None, None, True]),
            "capture": choose(["all", "lazy", [choose(names)]]),
            "kept_graphs": choose([1, 4]),
        }
        pool = choose([None, "first", "first", "second"])
        settings = settle(artifact.program.options, **options)
        model = Model(artifact, open_device(self.node.kind), settings, pools.get(pool))
        stack.callback(model.close)
        self.said.append(f"m{len(self.said)} = load({name!r}, pool={pool}, {options})")
        return Loaded(name, model, options, pool)

    # ---- one call -------------------------------------------------------------------------------------------------

    def _call(self) -> str:
        loaded = self.random.choice(self.models)
        entry = loaded.model.entry_points[self.random.choice(sorted(loaded.model.entry_points))]
        size = self.random.randint(1, 4)
        given = [self._input(spec, size, loaded) for spec in entry.spec.inputs]
        if self.random.random() < 0.15 and len(given) > 1:
            given = self._repeated(given)
        self.said.append(f"m{self.models.index(loaded)}.{entry.spec.name}({', '.join(map(_text, given))})")
        names = [spec.name for spec in entry.spec.inputs]
        inputs = {name: tensor.detach().clone().cpu() for name, tensor in zip(names, given)}
        states = {name: tensor.clone().cpu() for name, tensor in loaded.model.state.items()}
        if self.random.random() < 0.3:
            self._write_into_buffers(loaded, entry, given, inputs)
        mutated = [i for i, spec in enumerate(entry.spec.inputs) if spec.kind == "mutated"]
        shared = any(self._shared(given[i], given[:i] + given[i + 1 :], loaded, entry, size) for i in mutated)
        try:
            outputs = self._in_a_thread(lambda: entry.flat(given))
        except (ArgumentError, ShapeError) as error:
            gaps = any(not given[i].is_contiguous() for i in mutated)
            legal = (shared and "shares memory" in str(error)) or (gaps and "used in place" in str(error))
            return "" if legal else f"refused: {error}"
        if shared:
            return "a mutated input that shares memory was not refused"
        for i in mutated:
            self._written(given[i])
        reference = original(loaded.name, entry.spec.name)
        want = reference(inputs, states)
        pairs = [(f"output {n}", got, w) for n, (got, w) in enumerate(zip(outputs, want, strict=True))]
        pairs += [(f"input {names[i]}", given[i], inputs[names[i]]) for i in mutated]
        buffers = reference.buffers()
        pairs += [(f"state {name}", tensor, buffers[name]) for name, tensor in loaded.model.state.items()]
        for what, got, wanted in pairs:
            if got.dtype != wanted.dtype or not compare(got.cpu(), wanted, 1e-5, 1e-4)[1]:
                return f"{what} of {loaded.name} is {got.cpu()}, and not {wanted}"
        return self._keep(loaded, entry, size, outputs) or self._spoilt()

    def _write_into_buffers(self, loaded: Loaded, entry, given: list, inputs: dict) -> None:
        """Pass one input where the model wants it: written into its buffer, and the buffer handed in."""
        buffers = self.random.choice(list(entry.inputs.values()))
        for position, spec in enumerate(entry.spec.inputs):
            buffer = buffers.get(spec.name)
            if buffer is None or (buffer.dim() and buffer.shape[0] < given[position].shape[0]):
                continue
            part = buffer[: given[position].shape[0]] if buffer.dim() else buffer
            if part.shape != given[position].shape:
                continue
            if any(meet(span(part), span(other)) for n, other in enumerate(given) if n != position):
                continue
            part.copy_(inputs[spec.name])
            self._written(part)
            given[position] = part
            self.said[-1] += f" with {spec.name} written into its buffer"

    def _in_a_thread(self, call: Callable):
        if self.random.random() < 0.7:
            return call()
        answers: list = []

        def work() -> None:
            try:
                answers.append(call())
            except Exception as error:
                answers.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    # ---- inputs ---------------------------------------------------------------------------------------------------

    def _input(self, spec, size: int, loaded: Loaded) -> torch.Tensor:
        shape = [size if isinstance(n, tuple) else n for n in spec.shape]
        kind = DTYPES[spec.dtype]
        if kind == torch.int64 or self.random.random() < 0.35:
            return self._fresh(spec, shape, kind)
        views = [view for source in self._sources(loaded) for view in _views(source, shape, kind)]
        return self.random.choice(views) if views else self._fresh(spec, shape, kind)

    def _fresh(self, spec, shape: list[int], kind: torch.dtype) -> torch.Tensor:
        if kind == torch.int64:
            made = torch.randint(0, int(spec.value_range[1]), shape, generator=self.numbers)
        else:
            made = torch.randn(shape, generator=self.numbers)
        made = made.to(open_device(self.node.kind).torch_device)
        self.seen = [*self.seen[-3:], made]
        return made

    def _sources(self, loaded: Loaded) -> Iterator[torch.Tensor]:
        yield from (kept.tensor for kept in self.kept)
        yield from self.seen
        yield from loaded.model.state.values()
        if self.random.random() < 0.7:
            entry = self.random.choice(list(loaded.model.entry_points.values()))
            yield from (buffer for buffers in entry.inputs.values() for buffer in buffers.values())

    def _repeated(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        one, other = self.random.sample(range(len(given)), 2)
        if given[one].shape == given[other].shape and given[one].dtype == given[other].dtype:
            given[one] = given[other]
        return given

    def _shared(self, tensor: torch.Tensor, others: list[torch.Tensor], loaded: Loaded, entry, size: int) -> bool:
        arena = entry.graphs.pools[_bucket(entry, size)].span
        places = [*map(span, others), *map(span, loaded.model.state.values()), arena]
        return any(meet(span(tensor), place) for place in places)

    # ---- outputs --------------------------------------------------------------------------------------------------

    def _keep(self, loaded: Loaded, entry, size: int, outputs: list[torch.Tensor]) -> str:
        """Hold some outputs; those that nobody may overwrite have to keep their values."""
        number = _bucket(entry, size)
        bucket = (entry.spec.name, number)
        safe = bool(loaded.options["enable_output_clone"])
        apart = bool(loaded.options["disable_mempool_reuse_in_same_fx"])
        for kept in self.kept:
            if kept.loaded is loaded and not kept.own and (not apart or kept.bucket == bucket):
                kept.value = None
        mine = entry.graphs.pools[number].span
        for output, own in zip(outputs, entry.spec.outputs):
            if self.random.random() < 0.7:
                lasts = safe or own.clone or (apart and meet(span(output), mine))
                self.kept.append(Kept(output, loaded, bucket, output.clone() if lasts else None, safe or own.clone))
        self.kept = self.kept[-8:]
        return ""

    def _written(self, tensor: torch.Tensor) -> None:
        """What lies there was written by whoever calls: held outputs there have other values now."""
        for kept in self.kept:
            if meet(span(kept.tensor), span(tensor)):
                kept.value = None

    def _spoilt(self) -> str:
        for kept in self.kept:
            if kept.value is not None and not compare(kept.tensor.cpu(), kept.value.cpu(), 0, 0)[1]:
                return f"an output of {kept.loaded.name} that nobody may overwrite was overwritten"
        return ""


def _views(tensor: torch.Tensor, shape: list[int], kind: torch.dtype) -> Iterator[torch.Tensor]:
    """Views of `tensor` with that shape: whole, transposed, shifted, a slice, a row repeated."""
    if tensor.dtype != kind or not tensor.numel():
        return
    count = 1
    for size in shape:
        count *= size
    if list(tensor.shape) == shape:
        yield tensor
    if list(tensor.t().shape if tensor.dim() == 2 else ()) == shape:
        yield tensor.t()
    if tensor.dim() == 2 and len(shape) == 2 and tensor.shape[1] == shape[1]:
        yield from (tensor[start : start + shape[0]] for start in range(tensor.shape[0] - shape[0] + 1))
        yield tensor[:1].expand(*shape)
    if tensor.is_contiguous() and tensor.numel() > count:
        flat = tensor.view(-1)
        yield from (flat[start : start + count].view(shape) for start in (1, tensor.numel() - count))


def _bucket(entry, size: int) -> int:
    """The number of the bucket that serves a call of that size."""
    return next(n for n, b in enumerate(entry.spec.buckets) if not b.sizes or b.sizes[0] >= size)


def _text(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} at {tensor.data_ptr():#x}, strides {tensor.stride()}"


def _bucket_names(artifact) -> dict[str, list[str]]:
    from aotair_runtime.format.sizes import describe

    return {e.name: [describe(e, b.sizes) for b in e.buckets] for e in artifact.program.entry_points}


def check(seed: int, node: Node, schedule=lambda seed: contextlib.nullcontext()) -> str:
    """What one sequence got wrong, or nothing."""
    return Sequence(seed, node, schedule).run()
