"""From a recipe's `model` part to the original model: import the factory, call it, cast, load weights."""

import copy
import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from aotair_runtime.artifact.checkpoint import Checkpoint, dtype_fault, open_checkpoint, same_bytes, some
from aotair_runtime.artifact.listed import listed, listed_by_file
from aotair_runtime.artifact.renamed import Naming, renamed
from aotair_runtime.errors import AotairError, WeightsError
from aotair_runtime.format.torch_names import dtype

from ..errors import ModelError
from ..recipe.entry import EntryJob
from ..recipe.job import Job
from ..recipe.recipe import WeightsPart
from .aliases import refuse_layouts
from .checkpoints.replace import refuse_wrong_values, replace_quantised
from .tied_names import names_of


def load_model(job: Job) -> torch.nn.Module:
    """The recipe's model in evaluation mode, without gradients, on the CPU.

    The factory runs with torch's random state set to `verify.seed`. Raises ModelError.
    """
    model = make_model(job, None) if job.given is None else _copied(job.given, job)
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            "model.factory: returned no model",
            where=job.where,
            expected="a torch.nn.Module",
            got=type(model).__name__,
        )
    _refuse_scripted(model, job)
    _refuse_unmade(model, job)
    refuse_layouts(dict(model.named_buffers()) | dict(model.named_parameters()), job.where)
    if job.model.dtype is not None:
        model.to(dtype(job.model.dtype))  # before the weights: a checkpoint is rounded once, to this dtype
    if job.model.checkpoint is not None:
        checkpoint = _opened(model, job.model.checkpoint, job.folder)
        replace_quantised(model, checkpoint, job.target)
        load_values(model, checkpoint)
    model.eval().requires_grad_(False)
    for one in job.entries:
        _check_inputs(model, one)
    return model


def make_model(job: Job, mesh: object) -> Any:
    """What the factory returns; one that shares its model out itself is given a mesh, of None the whole model."""
    assert job.factory is not None, "a job has a factory or a model"
    torch.manual_seed(job.seed)
    more = {"mesh": mesh} if job.parallel == "model" else {}
    try:
        return job.factory(**job.model.kwargs, **more)
    except AotairError:
        raise
    except Exception as error:
        own = f"model.factory: {job.model.factory}"
        raise ModelError(
            f"{own if job.model.factory else 'model.pretrained'} failed: {type(error).__name__}: {error}",
            where=job.where,
            fix="call it yourself to see where; kwargs come from model.kwargs" if job.model.factory else "",
        ) from error


def _copied(model: torch.nn.Module, job: Job) -> torch.nn.Module:
    """A copy, on the host: a build changes modes, dtypes and weights, and the caller's model stays as it is."""
    try:
        return copy.deepcopy(model).cpu()
    except Exception as error:
        raise ModelError(
            f"model: the {type(model).__name__} cannot be copied: {type(error).__name__}: {error}",
            where=job.where,
            fix="name a factory that makes it, in model.factory",
        ) from error


def _refuse_scripted(model: torch.nn.Module, job: Job) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"model.factory: {name or 'the model'} is a {type(module).__name__}",
                where=job.where,
                expected="modules in Python: a graph is made of their code",
                fix="return the module as it was before torch.jit.script, torch.jit.trace or torch.jit.load",
            )


def _refuse_unmade(model: torch.nn.Module, job: Job) -> None:
    unmade = (torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, unmade):
            raise ModelError(
                f"model: {name} has no shape yet: it belongs to a lazy module",
                where=job.where,
                expected="parameters and buffers with values",
                fix="call the model once before it is returned or given",
            )


def _opened(model: torch.nn.Module, part: WeightsPart, folder: Path) -> Checkpoint:
    """The checkpoint that a recipe names, under the model's names."""
    try:
        found = open_checkpoint(folder / part.path)
        return renamed(found, model.state_dict().keys(), Naming(part.prefix, part.rename))
    except WeightsError as error:
        raise ModelError(
            f"model.weights: {error.what}", where=error.where, expected=error.expected, got=error.got, fix=error.fix
        ) from error


def load_values(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint, under the model's names, over the model's tensors, one shard at a time, mapped. Raises
    ModelError where names, shapes or dtypes do not fit, or the values of a quantised layer mean nothing."""
    _check_tensors(model, checkpoint)
    missing: set[str] | None = None
    unexpected: list[str] = []
    for shard in checkpoint.shards():
        try:
            result = model.load_state_dict(shard, strict=False)
        except RuntimeError as error:
            raise ModelError(f"model.weights: {error}", where=str(checkpoint.path)) from error
        missing = set(result.missing_keys) if missing is None else missing & set(result.missing_keys)
        unexpected += result.unexpected_keys
        del shard  # its file is let go before the next is mapped
    tied = names_of(model).tied
    lacking = [name for name in model.state_dict() if name in (missing or ())]
    lacking = [name for name in lacking if not set(tied.get(name, ())) & set(checkpoint.tensors)]
    if lacking or unexpected:
        raise ModelError(
            "model.weights: the names do not match the model's",
            where=str(checkpoint.path),
            expected=f"every parameter and buffer; missing: {listed(lacking)}",
            got=f"names the model does not have: {_with_files(unexpected, checkpoint)}",
        )
    refuse_wrong_values(model, checkpoint)


def _check_tensors(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Raises ModelError where a tensor of the checkpoint has another shape than the model's, is no kind of number that
    can become the model's, or differs from one that the model ties to it."""
    wrong = []
    for name, want in model.state_dict().items():
        have = checkpoint.tensors.get(name)
        if have is None or not isinstance(want, torch.Tensor):
            continue
        if have.shape != want.shape or dtype_fault(have.dtype, want.dtype, cast=True):
            wrong.append(
                f"{name} is {_text(have.dtype, have.shape)} in {have.file.name}, not {_text(want.dtype, want.shape)}"
            )
    if wrong:
        raise ModelError("model.weights: tensors do not fit the model's", where=str(checkpoint.path), got=some(wrong))
    for group in dict.fromkeys(names_of(model).tied.values()):
        there = [name for name in group if name in checkpoint.tensors]
        if len(there) > 1 and not same_bytes(checkpoint.tensor(name) for name in there):
            raise ModelError(
                "model.weights: the model ties these tensors, and the checkpoint holds different values for them",
                where=str(checkpoint.path),
                got=_with_files(there, checkpoint),
                fix="untie them in the factory, or leave all but one out of the checkpoint",
            )


def _text(kind: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(kind).removeprefix('torch.')}{list(shape)}"


def _with_files(names: Sequence[str], checkpoint: Checkpoint) -> str:
    return listed_by_file(names, {name: checkpoint.tensors[name].file.name for name in names})


def _check_inputs(model: torch.nn.Module, job: EntryJob) -> None:
    """Raises ModelError where the method does not take the entry point's inputs, or needs others."""
    method = getattr(model, job.method, None)
    if not callable(method):
        raise ModelError(
            "method: the model does not have it",
            where=job.where,
            expected=f"a method of {type(model).__name__}",
            got=job.method,
        )
    takes = _Parameters(method)
    expected = f"arguments of {type(model).__name__}.{job.method}: {takes}"
    given = [("inputs", name) for name in job.inputs] + [("constants", name) for name in job.constants]
    for field, name in given:
        if fix := takes.fix_of(name):
            raise ModelError(
                f"{field}.{name}: the model does not take this input",
                where=job.where,
                expected=expected,
                got=name,
                fix=fix,
            )
    for name in takes.missing({name.partition(".")[0] for _, name in given}):
        raise ModelError(
            f"inputs: the model needs {name!r}",
            where=job.where,
            expected=expected,
            got=", ".join(job.inputs),
            fix=f"describe {name} under inputs, or give it a value under constants where it is no tensor",
        )


class _Parameters:
    """The parameters of a method: `several` is the name of its `*args`, `rest` of its `**kwargs`; `named` are all
    others, of which the `needed` ones have no default."""

    def __init__(self, method: Callable[..., object]):
        parameters = inspect.signature(method).parameters
        self.several = next((n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL), None)
        self.rest = next((n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
        self.named = [n for n in parameters if n not in (self.several, self.rest)]
        self.needed = [n for n in self.named if parameters[n].default is inspect.Parameter.empty]

    def __str__(self) -> str:
        takes = [n if n in self.needed else f"{n} (optional)" for n in self.named]
        takes += [] if self.several is None else [f"{self.several}.0 … (as *{self.several})"]
        takes += [] if self.rest is None else [f"any (as **{self.rest})"]
        return ", ".join(takes)

    def missing(self, given: Collection[str]) -> list[str]:
        """Those that a call cannot do without."""
        return [name for name in self.needed if name not in given]

    def fix_of(self, name: str) -> str:
        """What to do about an input or constant of that name that the method does not take; nothing where it does."""
        top, dot, inner = name.partition(".")
        if top == self.several and not dot:
            return f"write {top}.0, {top}.1 …"
        if top == self.rest and dot:
            return f"write {inner}: it is an argument of its own"
        return "" if top in self.named or top == self.several or self.rest is not None else "rename or remove it"
