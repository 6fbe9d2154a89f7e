"""What a build says: while it goes, to a listener, and of itself at the end."""

from dataclasses import asdict, dataclass, field


class Listener:
    """Hears how a build goes; the default says nothing."""

    def stage(self, name: str) -> None:
        """A stage begins."""

    def bucket(self, done: int, total: int) -> None:
        """Within the current stage, `done` of `total` buckets are done."""


@dataclass(frozen=True)
class Quantised:
    """How many linear layers became `scheme`, modules of experts `expert_scheme` and layers' keys and values
    `cache_scheme`, each None where the recipe asks for none, and how far that moved what they and the model answer to
    the inputs of `source`: for each layer, the worst first, the norm of the differences over the norm of its answers,
    where it is called, or of what it keeps; of the model's outputs the largest difference, the largest norm of
    differences over the norm of an output, and the smallest cosine."""

    scheme: str | None
    linears: int
    expert_scheme: str | None
    experts: int
    cache_scheme: str | None
    caches: int
    source: str
    layers: dict[str, float]
    max_abs_error: float
    relative_error: float
    cosine: float

    def kinds(self) -> list[tuple[str, int]]:
        """What was quantised to what, and how many."""
        asked = (
            ("linear layers", self.scheme, self.linears),
            ("modules of experts", self.expert_scheme, self.experts),
            ("layers' keys and values", self.cache_scheme, self.caches),
        )
        return [(f"{what} in {scheme}", number) for what, scheme, number in asked if scheme is not None]


@dataclass(frozen=True)
class SharedOut:
    """What the ranks of `mesh` share out: modules by style; and what each of them has whole, though the plan names it,
    with the reason. `weights`: the bytes of a rank's, as the original has them, and `whole` what every rank has."""

    mesh: str
    styles: dict[str, int]
    kept: dict[str, str]
    weights: int
    whole: int


@dataclass(frozen=True)
class OfMesh:
    """What the program for one of several meshes came to: the fields are those of `Summary`."""

    mesh: str
    nodes_before: int
    nodes_after: int
    buckets: int
    arena: int
    memory: int
    max_abs_error: float
    units: float
    padding_runs: int
    shared_out: SharedOut | None


@dataclass(frozen=True)
class Summary:
    """What a build came to. Sizes in bytes, times in seconds; `units`: the largest error in units in the last place of
    its row's greatest number, and `sampled`: whether fewer runs proved it; `nodes` before and after, `rewrites` by
    pass; `misses`: how many near matches each fusion rule left alone; `quantised`: how far that moved the answers, or
    None; `graphs`: for each further graph of an entry point, why those before do not serve its buckets; `memory`: the
    most that a load takes, `budget` as the recipe has it: bytes, a share of the device, or None; `packages`: for each
    namespace of ops that the program uses and nodes have to allow, the package that a node has to import; `shared_out`:
    None for one rank. `meshes`: of an artifact for several meshes, what each program came to; the other numbers are
    then the largest of any, or counted over all of them, and `shared_out` is None."""

    artifact: str
    nodes_before: int
    nodes_after: int
    buckets: int
    arena: int
    weights: int
    program: int
    max_abs_error: float
    units: float
    padding_runs: int
    sampled: bool
    seconds: dict[str, float]
    rewrites: dict[str, int]
    misses: dict[str, int]
    quantised: Quantised | None
    graphs: list[str]
    memory: int
    budget: int | float | None
    packages: dict[str, str]
    shared_out: SharedOut | None = None
    meshes: list[OfMesh] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """What came of one of several recipes, by its number: what it was built into, or why it could not be."""

    number: int
    summary: Summary | None
    error: str = ""


@dataclass(frozen=True)
class Bisection:
    """To find the pass, and then the rewrite, that makes a build wrong: `stop_after` names the last pass to run, as
    `NAME:2` where one is meant that is not its last run; `max_rewrites` is how many rewrites all passes together may
    make."""

    stop_after: str | None = None
    max_rewrites: int | None = None
