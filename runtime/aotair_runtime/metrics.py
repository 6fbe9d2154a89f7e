"""What models count, for Prometheus and OpenTelemetry: worked out when somebody looks, and nowhere in a call."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .errors import AotairError, in_line
from .model import Model

_MOST_LABEL = 200  # letters: an artifact may give its inputs names of any length


@dataclass(frozen=True)
class Metric:
    """One metric: its name with dots, what it counts, and its points, each with labels and a value. A "counter" never
    goes down while a model lives, a "gauge" may."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    says: str
    points: tuple[tuple[Mapping[str, str], float], ...]


def metrics(models: Iterable[Model]) -> tuple[Metric, ...]:
    """The metrics of loaded models, which are told apart by the label `model`: the name of the artifact, numbered where
    several have it."""
    named = list(_named(models))
    return tuple(
        Metric(name, kind, unit, says, tuple(_points(named, found))) for name, kind, unit, says, found in _METRICS
    )


def prometheus_text(models: Iterable[Model]) -> str:
    """The metrics in Prometheus' text format, version 0.0.4, as a body for `/metrics`."""
    lines = []
    for metric in metrics(models):
        name = _prometheus_name(metric)
        lines += [f"# HELP {name} {metric.says}", f"# TYPE {name} {metric.kind}"]
        for labels, value in metric.points:
            text = ",".join(f'{label}="{_escaped(given)}"' for label, given in labels.items())
            lines.append(f"{name}{{{text}}} {value:.17g}")
    return "\n".join(lines) + "\n"


def instrument(models: Sequence[Model], meter: Any = None) -> None:
    """Let OpenTelemetry observe the models, as long as they live. `meter`: by default the one that the global provider
    gives for "aotair". Raises AotairError where the package `opentelemetry-api` is not there."""
    try:
        import opentelemetry.metrics as api
    except ImportError as error:
        raise AotairError("OpenTelemetry is not there", got=str(error), fix="pip install opentelemetry-api") from error
    meter = meter or api.get_meter("aotair")
    living = [weakref.ref(model) for model in models]

    def observing(position: int) -> Callable[[object], Iterator[Any]]:
        def observe(_: object) -> Iterator[Any]:
            there = [model for model in (one() for one in living) if model is not None]
            for labels, value in metrics(there)[position].points:
                yield api.Observation(value, dict(labels))

        return observe

    for position, (name, kind, unit, says, _) in enumerate(_METRICS):
        create = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        create(name, callbacks=[observing(position)], unit=unit, description=says)


# ---- what there is ---------------------------------------------------------------------------------------------------

Points = Iterator[tuple[Mapping[str, str], float]]


def _calls(model: Model) -> Points:
    for one in model.stats().buckets:
        yield {"entry": one.entry, "bucket": one.bucket}, one.calls


def _padding(model: Model) -> Points:
    for one in model.stats().buckets:
        yield {"entry": one.entry, "bucket": one.bucket}, one.padding


def _captures(model: Model) -> Points:
    for one in model.stats().buckets:
        yield {"entry": one.entry, "bucket": one.bucket}, one.captures


def _recaptures(model: Model) -> Points:
    for one in model.stats().recaptures:
        yield {"entry": one.entry, "bucket": one.bucket, "reason": one.reason}, one.times


def _reloads(model: Model) -> Points:
    yield {}, model.stats().reloads


def _memory(model: Model) -> Points:
    for one in model.memory().categories:
        for what, nbytes in (("promised", one.promised), ("reserved", one.reserved), ("used", one.used)):
            yield {"category": one.name, "what": what}, nbytes


_Row = tuple[str, Literal["counter", "gauge"], str, str, Callable[[Model], Points]]
_METRICS: tuple[_Row, ...] = (
    ("aotair.calls", "counter", "{call}", "Calls that a bucket served", _calls),
    ("aotair.padding", "gauge", "1", "Of the input elements that a bucket ran, the share that was padding", _padding),
    ("aotair.captures", "counter", "{capture}", "Captures of a bucket", _captures),
    ("aotair.recaptures", "counter", "{capture}", "Captures of a bucket that had one, by reason", _recaptures),
    ("aotair.reloads", "counter", "{reload}", "How often the weights were replaced", _reloads),
    ("aotair.memory", "gauge", "By", "Memory by what it is for: promised, reserved, used", _memory),
)


def _named(models: Iterable[Model]) -> Iterator[tuple[str, Model]]:
    count: dict[str, int] = {}
    for model in models:
        name = model.program.name
        count[name] = count.get(name, 0) + 1
        yield (name if count[name] == 1 else f"{name} {count[name]}"), model


def _points(named: Sequence[tuple[str, Model]], found: Callable[[Model], Points]) -> Points:
    for name, model in named:
        for labels, value in found(model):
            yield {label: _label(text) for label, text in {"model": name, **labels}.items()}, value


def _label(text: str) -> str:
    return in_line(text)[:_MOST_LABEL]


def _prometheus_name(metric: Metric) -> str:
    unit = {"By": "_bytes", "1": "_ratio"}.get(metric.unit, "")
    return metric.name.replace(".", "_") + unit + ("_total" if metric.kind == "counter" else "")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
