"""The difference of two artifacts as a whole: what each part of the comparison found."""

from dataclasses import asdict, dataclass, field, replace

from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import Artifact

from . import facts
from .facts import Amount, Fact
from .graphs import GraphChange, Side, graph_changes
from .plans import PlanChange, plan_changes
from .speed import TimeChange, Times, time_changes
from .weights import WeightChange, weight_changes


@dataclass(frozen=True)
class Diff:
    """What differs from the artifact `before` to `after`; all empty where nothing does. `times` and `replays` are
    measured, seconds by op and by bucket, and say nothing of whether the artifacts differ."""

    before: str
    after: str
    recipe: tuple[Fact, ...] = ()
    versions: tuple[Fact, ...] = ()
    interface: tuple[Fact, ...] = ()
    buckets: tuple[Fact, ...] = ()
    graphs: tuple[GraphChange, ...] = ()
    weights: tuple[WeightChange, ...] = ()
    plans: tuple[PlanChange, ...] = ()
    proofs: tuple[Fact, ...] = ()
    amounts: tuple[Amount, ...] = ()
    worst_proof: Amount = field(default_factory=lambda: Amount("proof", 0.0, 0.0))
    times: tuple[TimeChange, ...] = ()
    replays: tuple[TimeChange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not any(getattr(self, name) for name in PARTS)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


PARTS = ("recipe", "versions", "interface", "buckets", "graphs", "weights", "plans", "proofs", "amounts")


def diff(one: Artifact, other: Artifact) -> Diff:
    """What differs between two artifacts. Raises an ArtifactError where one of them cannot be read."""
    sides = [Side.of(artifact.program, read_debug_data(artifact)) for artifact in (one, other)]
    programs = one.program, other.program
    return Diff(
        before=str(one.path),
        after=str(other.path),
        recipe=facts.facts(*programs, facts.recipe_facts),
        versions=facts.facts(*programs, facts.version_facts),
        interface=facts.facts(*programs, facts.interface_facts),
        buckets=facts.facts(*programs, facts.bucket_facts),
        graphs=graph_changes(*sides),
        weights=weight_changes(one, other),
        plans=plan_changes(*sides),
        proofs=facts.facts(*programs, facts.proof_facts),
        amounts=facts.amounts(*programs),
        worst_proof=Amount("proof", *map(facts.worst_proof, programs)),
    )


def with_times(found: Diff, one: Times, other: Times) -> Diff:
    """The same, with what was measured of both."""
    return replace(found, times=time_changes(one.ops, other.ops), replays=time_changes(one.buckets, other.buckets))
