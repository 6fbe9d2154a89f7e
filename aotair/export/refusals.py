"""Why does torch.export refuse a model? Its text, in words that name the line of the model and the fix."""

import re
from collections.abc import Callable

from ..errors import ExportError, SizesError, user_frame
from ..recipe.entry import EntryJob
from .ranges import dynamic_dims


def explained(error: Exception, job: EntryJob) -> ExportError:
    """What to raise for an error of torch.export: a SizesError where another graph for each size may help."""
    text = str(error).strip()
    for asks, refusal in _CAUSES:
        if asks(text, error):
            return refusal(text, user_frame(error), job)
    lines = _lines(text)
    return ExportError(
        f"model: torch.export cannot make one graph of it{user_frame(error)}",
        where=job.where,
        got=f"{type(error).__name__}: {' '.join(lines[:3])[:400]}",
        fix="run torch.export.export(model, (), inputs, strict=False) yourself to see the whole trace",
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _looks_sizes_up(text: str, at: str, job: EntryJob) -> ExportError:
    return SizesError(
        f"buckets: the model keeps things by size{at}",
        where=job.where,
        got=_lines(text)[0],
        expected="the same for all sizes: a size is looked up in a dict or a cache",
        fix="leave out the dict or the cache there, or make an artifact for each size",
    )


def _excludes_sizes(text: str, at: str, job: EntryJob) -> ExportError:
    fixes = re.findall(r"^ {2}(\w+ = .+)$", text, re.MULTILINE)
    named = [fix for fix in fixes if f"You marked {fix.split()[0]} " in text] or fixes
    dims = "; ".join(f"{dim} from {low} to {high}" for dim, (low, high) in dynamic_dims(job).items())
    return SizesError(
        "buckets: the model does not allow these sizes",
        where=job.where,
        expected=f"a model that takes {dims}",
        got="torch.export found that it needs " + (", ".join(named) or _lines(text)[0]),
        fix="leave out the buckets that the model excludes, or write a number for a dimension that cannot vary",
    )


_UNKNOWN = re.compile(r"Found <class '(?:.*\.)?(\w+)'> in output, which is not a known type")


def _returns_a_class(text: str, at: str, job: EntryJob) -> ExportError:
    found = _UNKNOWN.search(text)
    assert found is not None
    return ExportError(
        f"model: it returns a {found[1]}{at}",
        where=job.where,
        expected="tensors, numbers and texts in tuples, lists, dicts, named tuples or registered records",
        got=found[1],
        fix="return the tensors in it, or wrap the model in one that leaves it out (a language "
        "model's cache: call it with use_cache=False, or keep the cache in buffers)",
    )


def _reshapes_a_buffer(text: str, at: str, job: EntryJob) -> ExportError:
    return ExportError(
        f"model: it puts a tensor of another shape in the place of a buffer{at}",
        where=job.where,
        expected="buffers that keep their shapes, for all buckets",
        got=_lines(text)[0],
        fix="make it for the largest size in __init__, or compute it in each call and keep it in no buffer",
    )


def _takes_a_conjugate_apart(text: str, at: str, job: EntryJob) -> ExportError:
    return ExportError(
        f"model: it takes apart, or writes through, a conjugate of a complex tensor{at}",
        where=job.where,
        expected="conjugates that are tensors of their own where they are viewed as real, or written",
        got=_lines(text)[0],
        fix="call .resolve_conj() on it first, and register complex buffers with .resolve_conj()",
    )


def _depends_on_values(text: str, at: str, job: EntryJob) -> ExportError:
    return ExportError(
        f"inputs: the model's control flow or shapes depend on the values of a tensor{at}",
        where=job.where,
        expected="shapes that follow from the shapes of the inputs",
        got=_lines(text)[0],
        fix="replace .item(), nonzero(), boolean indexing or `if tensor:` by torch.where and masks",
    )


def _is_data_dependent(text: str, error: Exception) -> bool:
    named = "data-dependent" in text or "unbacked" in text
    return named or type(error).__name__ == "GuardOnDataDependentSymNode"


# The first whose text it is says why.
_CAUSES: tuple[tuple[Callable[[str, Exception], object], Callable[[str, str, EntryJob], ExportError]], ...] = (
    (lambda text, _: "unhashable type" in text and "SymInt" in text, _looks_sizes_up),
    (lambda text, _: re.search("Constraints violated|Not all values|specialized", text), _excludes_sizes),
    (lambda text, _: _UNKNOWN.search(text), _returns_a_class),
    (lambda text, _: "copy__default" in text and "expand" in text, _reshapes_a_buffer),
    (lambda text, _: "unresolved conjugated" in text, _takes_a_conjugate_apart),
    (_is_data_dependent, _depends_on_values),
)
