"""What export makes of a model, for the tests of the stages behind it: of one of RECIPES, or of a function."""

from collections.abc import Callable

import torch
from cases import RECIPES

from aotair.export.export import export
from aotair.export.exported import Exported
from aotair.model.load import load_model
from aotair.program import Built, build_program
from aotair.recipe.entry import EntryJob
from aotair.recipe.job import Job, job_of
from aotair.recipe.read import of_model, parse_recipe


def model_of(forward: Callable, **parts: object) -> torch.nn.Module:
    """A model whose method is `forward(self, …)`; tensors among `parts` are its buffers, other values its own."""
    model = type("Model", (torch.nn.Module,), {"forward": forward})()
    for name, value in parts.items():
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            model.register_buffer(name, value)
        else:
            setattr(model, name, value)
    return model.eval().requires_grad_(False)


def shaped(*shape: int | str, dtype: str = "float32", **parts: object) -> dict:
    """An input of a recipe."""
    return {"shape": list(shape), "dtype": dtype, **parts}


def job_for(model: torch.nn.Module, /, inputs: dict, buckets: dict | list | None = None, **parts: object) -> Job:
    """What a build of a model that is there already has to do."""
    return job_of(of_model(model, {"inputs": inputs, "buckets": buckets or {}, **parts}), given=model)


def entry_of(model: torch.nn.Module, /, inputs: dict, buckets: dict | list | None = None, **parts: object) -> EntryJob:
    """The only entry point of such a job."""
    return job_for(model, inputs, buckets, **parts).entries[0]


def exported(name: str) -> tuple[Job, Exported]:
    """One of RECIPES, and its graph."""
    job = job_of(parse_recipe(RECIPES[name]))
    return job, export(load_model(job), job.entries[0])


def built_of(model: torch.nn.Module, /, inputs: dict, buckets: dict | list | None = None, **parts: object) -> Built:
    """The program of a model, planned but not proved, without any pass before."""
    job = job_for(model, inputs, buckets, **parts)
    return build_program([export(model, job.entries[0])], job, lambda *_: None)
