"""torch.export, once, with symbolic dimensions: the original model becomes one graph with classified inputs."""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch.export import Dim

from aotair_runtime.format.torch_names import dtype

from ..errors import ModelError, SizesError, UnsupportedError, user_frame
from ..graph.fake import quiet_torch
from ..model.aliases import refuse_layouts, refuse_shared_writes
from ..model.arguments import MethodArguments, plain_defaults
from ..model.hidden_state import hidden_tensors
from ..model.reference import calling
from ..model.tied_names import names_of
from ..recipe.entry import EntryJob
from .classify import classify
from .composites import taken_apart
from .exported import Exported
from .guards import Assumptions, Size, assumptions_of, guard_lines, shape_env
from .host_inputs import with_host_inputs
from .keywords import keywords
from .ranges import dynamic_dims, example_sizes
from .refusals import explained


def export(model: torch.nn.Module, job: EntryJob) -> Exported:
    """One graph for all buckets. Raises SizesError where there is none, another ExportError where torch.export refuses
    altogether, UnsupportedError where the graph cannot be an artifact's."""
    dims = {name: Dim(name, min=low, max=high) for name, (low, high) in dynamic_dims(job).items()}
    return _exported(model, job, example_sizes(job), dims)


def export_at(model: torch.nn.Module, job: EntryJob, bucket: tuple[int, ...]) -> tuple[Exported, Assumptions]:
    """A graph for one bucket, and what it assumes of sizes: it is right for all buckets for which that holds. Raises as
    `export` does."""
    ranges = dynamic_dims(job)
    dims = {name: Dim.AUTO(min=low, max=high) for name, (low, high) in ranges.items()}
    at = dict(zip(job.dims(), bucket))
    with guard_lines() as lines:
        try:
            one = _exported(model, job, at, dims)
        except SizesError:  # not even one that assumes things of sizes: the model looks sizes up
            one = _exported(model, job, at, {})
    sizes, shapes = [], None
    for name, item in job.inputs.items():
        value = one.placeholder(name).meta["val"]
        shapes = shapes or shape_env(value)
        for dim, size in ((d, s) for d, s in zip(item.shape, value.shape) if isinstance(d, str)):
            sizes.append(Size(job.dims().index(dim), size.node.expr if isinstance(size, torch.SymInt) else size))
    return one, assumptions_of(sizes, job.dims(), shapes, lines)


def _exported(model: torch.nn.Module, job: EntryJob, sizes: Mapping[str, int], dims: Mapping[str, object]) -> Exported:
    words = keywords(job)
    examples = {
        words[name]: torch.zeros(item.shape_at(sizes), dtype=dtype(item.dtype)) for name, item in job.inputs.items()
    }
    shapes = {
        words[name]: {axis: dims[d] for axis, d in enumerate(item.shape) if isinstance(d, str) and d in dims}
        for name, item in job.inputs.items()
    }
    try:
        with quiet_torch(), torch.no_grad(), calling(model, job.method), _with_inputs(model, job):
            program = torch.export.export(model, (), examples, dynamic_shapes=shapes, strict=False)
            program = taken_apart(program)
    except (ModelError, SizesError):  # of the recipe's arguments; of what is known to have no graph for all sizes
        raise
    except Exception as error:
        if isinstance(error, UnsupportedError):
            raise UnsupportedError(
                error.what + user_frame(error),
                where=job.where,
                expected=error.expected,
                got=error.got,
                fix=error.fix,
            ) from error
        if "compiled_fn to be GraphModule" in str(error):  # what torch says of writes to memory that tensors share
            refuse_shared_writes(model, job, dict(hidden_tensors(model)))
        if "Sparse" in str(error):
            refuse_layouts(dict(hidden_tensors(model)), job.where)
        raise explained(error, job) from error
    one = classify(program, model, job)
    defaults = plain_defaults(getattr(model, job.method), (*job.inputs, *job.constants))
    return replace(one, names=names_of(model), entry=job.entry, defaults=tuple(defaults.items()))


@contextlib.contextmanager
def _with_inputs(model: torch.nn.Module, job: EntryJob) -> Iterator[None]:
    """Within the block, the model's parameters are the recipe's inputs, each by its keyword though the model may take
    it among `*args` or `**kwargs` or as a part of an argument; constants are what they are, and host inputs what stands
    for lists."""
    parameters = inspect.signature(model.forward).parameters
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    hosts = any(item.host for item in job.inputs.values())
    if named >= set(job.inputs) and not hosts and not job.constants:
        yield
        return
    had, forward, words = model.__dict__.get("forward"), model.forward, keywords(job)
    arguments = MethodArguments(forward, job)

    @functools.wraps(forward)
    def call(*given: torch.Tensor, **named: torch.Tensor) -> object:
        values = dict(zip(words, given)) | {name: named[k] for name, k in words.items() if k in named}
        args, kwargs = arguments(with_host_inputs(values, job))
        return forward(*args, **kwargs)

    model.forward = call
    call.__dict__["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in words.values()]
    )
    try:
        yield
    finally:
        del model.forward
        if had is not None:
            model.forward = had
