"""Every way in which loading or calling an artifact can be refused, one class for each."""

import re
from collections.abc import Iterator

# What a terminal obeys instead of printing: control characters but for tab and the end of a line, marks that turn the
# direction of writing, other ends of lines; and halves of characters, which cannot be printed.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MOST_LINE = 4000


def shown(text: str) -> str:
    """A text that others may have written, as a terminal prints it: what it would obey is escaped (`\\x1b`)."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_line(text: str) -> str:
    """The same on one line: ends of lines and tabs are escaped too."""
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it came of, and so on; each once: what is raised again from its own cause goes in a circle."""
    seen: list[BaseException] = []
    while error is not None and not any(error is one for one in seen):
        yield error
        seen.append(error)
        error = error.__cause__


def _lines(text: str) -> str:
    """The same, with lines of a length that somebody may read."""
    lines = shown(text).split("\n")
    return "\n".join(line if len(line) <= _MOST_LINE else f"{line[:_MOST_LINE]}…" for line in lines)


class AotairError(Exception):
    """A refusal that its reader can act on.

    The message names where the fault lies, what was expected, what came instead and what to do about it; each part
    is optional except `what`. What a terminal would obey is escaped in them. `stage` is that of the build which it
    ended, if any.
    """

    stage: str | None = None

    def __init__(self, what: str, *, where: str = "", expected: str = "", got: str = "", fix: str = ""):
        what, where, expected, got, fix = map(_lines, (what, where, expected, got, fix))
        self.what, self.where, self.expected, self.got, self.fix = what, where, expected, got, fix
        parts = [f"{where}: {what}" if where else what]
        parts += [f"  {name}: {text}" for name, text in (("expected", expected), ("got", got), ("fix", fix)) if text]
        super().__init__("\n".join(parts))


class ArtifactError(AotairError):
    """The artifact on disk cannot be used."""


class NotAnArtifactError(ArtifactError):
    """The path holds no artifact."""


class TruncatedError(ArtifactError):
    """A file of the artifact is missing, shorter or longer than recorded."""


class AlteredError(ArtifactError):
    """The bytes of a file do not match their recorded digest."""


class UnreadableError(ArtifactError):
    """The system does not let a file of the artifact be read: rights, too many open files, a fault of the disk."""


class FormatVersionError(ArtifactError):
    """The artifact was written in a format that this runtime does not read."""


class MalformedError(ArtifactError):
    """The program breaks a rule of the format."""


class RequirementError(ArtifactError):
    """This node lacks something that the artifact needs: a torch version, a device, an op or its schema."""


class NamespaceError(RequirementError):
    """The program names an op that it may not use."""


class TrustError(ArtifactError):
    """The artifact is not known to be by whom the policy trusts; nothing of it was parsed."""


class PolicyError(TrustError):
    """The policy cannot be applied: a file of it cannot be read, or the package that verifies signatures is missing."""


class UnsignedError(TrustError):
    """There is no signature, and the policy asks for one."""


class SignatureError(TrustError):
    """The signature is none that is read, or does not fit what it signs."""


class SignerError(TrustError):
    """The signer is not one whom the policy trusts: another key, another authority, another name."""


class ExpiredError(TrustError):
    """The signer's certificate, or one that vouches for it, is not valid now."""


class AddedFileError(TrustError):
    """The artifact's folder holds a file that was not signed."""


class CallError(AotairError):
    """The arguments of a call do not fit; nothing was changed."""


class ArgumentError(CallError, TypeError):
    """An argument is missing, unknown, given twice or not a tensor."""


class ShapeError(CallError, ValueError):
    """No bucket takes these shapes."""


class DTypeError(CallError, TypeError):
    """An input has another dtype than the model was built for."""


class DeviceError(CallError, ValueError):
    """An input lies on another device than the model."""


class WeightsError(AotairError):
    """A checkpoint cannot be read, or its weights are not what the model takes; the model is what it was."""


class SnapshotError(AotairError):
    """A snapshot of a call cannot be written or read, or is of another model."""


class HandoverError(AotairError):
    """States that another model has exported do not fit this one; its own are what they were."""


class ClosedError(AotairError, RuntimeError):
    """The model was closed."""


class CaptureError(AotairError, RuntimeError):
    """An instruction failed while a bucket was bound, captured or run."""


class RankError(AotairError, RuntimeError):
    """The ranks that run a model together do not fit, or one of them is gone."""


class UpdateError(AotairError, RuntimeError):
    """The host arguments of a captured graph were not replaced; the call's numbers are nobody's."""


class OutputHeldWarning(UserWarning):
    """An output of an earlier call is still held and has just been overwritten by a replay."""


class BudgetError(CaptureError):
    """The captures asked for would take more graphs, streams or events than there are."""


class MemoryBudgetError(AotairError):
    """The model would take more memory than its budget, or than the device has left; nothing was allocated."""


class OutOfMemoryError(CaptureError):
    """The device had no memory left while a model was loaded or a bucket captured; what that took was given back."""
