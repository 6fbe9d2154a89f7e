"""The buckets of an artifact as graphs that Model Explorer draws: calls by module, with shapes, lines and waits."""

from collections.abc import Iterator

from model_explorer import graph_builder as drawing

from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import Bucket, EntryPoint, Program

from ..diff.flow import RETURN, Flow, Source, Step, constant_names, flow_of
from .ids import graph_id, places

_SHAPE = "tensor_shape"  # what Model Explorer writes at edges
_END = "outputs"


def collections(program: Program, debug: DebugData) -> list[drawing.GraphCollection]:
    """A collection for each entry point, a graph for each of its buckets."""
    names = constant_names(program)
    return [
        drawing.GraphCollection(
            label=entry.name,
            graphs=[_graph(program, entry, bucket, names, debug) for bucket in entry.buckets],
            graphSorting="node_count_asc",
        )
        for entry in program.entry_points
    ]


def _graph(program: Program, entry: EntryPoint, bucket: Bucket, names: list[str], debug: DebugData) -> drawing.Graph:
    flow, ids = flow_of(program, entry, bucket, names, debug), [*map(str, places(program, bucket)), _END]
    nodes = [*_given(flow), *(_call(step, ids[number], ids) for number, step in enumerate(flow.steps))]
    return drawing.Graph(id=graph_id(entry, bucket), nodes=nodes, tasksData=_waits(flow, ids))


def _given(flow: Flow) -> Iterator[drawing.GraphNode]:
    """What a call begins with: its inputs, and what is kept from the calls before."""
    origins = (source.origin for step in flow.steps for read in step.reads for source in read)
    for origin in dict.fromkeys(origins):
        if not isinstance(origin, int) and origin[0] in ("input", "state"):
            yield drawing.GraphNode(id=_name(origin), label=origin[1], namespace=f"{origin[0]}s")


def _name(origin: tuple[str, str]) -> str:
    return f"{origin[0]} {origin[1]}"


def _call(step: Step, name: str, ids: list[str]) -> drawing.GraphNode:
    is_end = step.op == RETURN
    said = {
        "op": step.op,
        "arguments": step.said,
        "weights": ", ".join(_weights(step)),
        "line": step.made.line,
        "module": step.made.module,
        "made by": step.made.passes,
        "stream": str(step.stream) if step.stream else "",
    }
    return drawing.GraphNode(
        id=name,
        label=_END if is_end else step.computes.partition("::")[2],
        namespace="" if step.made.module in ("", ".") else step.made.module.replace(".", "/"),
        attrs=[drawing.KeyValue(key, text) for key, text in said.items() if text and not is_end],
        incomingEdges=list(_edges(step, ids)),
        outputsMetadata=[
            drawing.MetadataItem(str(slot), [drawing.KeyValue(_SHAPE, text)]) for slot, text in enumerate(step.writes)
        ],
    )


def _weights(step: Step) -> Iterator[str]:
    origins = (source.origin for read in step.reads for source in read)
    return (origin[1] for origin in dict.fromkeys(origins) if not isinstance(origin, int) and origin[0] == "constant")


def _edges(step: Step, ids: list[str]) -> Iterator[drawing.IncomingEdge]:
    for place, read in enumerate(step.reads):
        for source in read:
            if (sender := _sender(source, ids)) is not None:
                yield drawing.IncomingEdge(sender, str(source.slot), str(place))


def _sender(source: Source, ids: list[str]) -> str | None:
    """The node that bytes come from; weights have none."""
    if isinstance(source.origin, int):
        return ids[source.origin]
    return _name(source.origin) if source.origin[0] in ("input", "state") else None


def _waits(flow: Flow, ids: list[str]) -> drawing.TasksData | None:
    """Which call of a stream waits for which of another, to be laid over the graph."""
    edges = [drawing.Edge(ids[before], ids[after]) for before, after in flow.waits if before >= 0]
    if not edges:
        return None
    overlay = drawing.EdgeOverlay(name="waits", edgeColor="#c0392b", edges=edges)
    return drawing.TasksData([drawing.EdgeOverlaysData(name="streams", overlays=[overlay])])
