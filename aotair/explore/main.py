"""What Model Explorer imports: an adapter that draws artifacts, and the numbers that it lays over their graphs."""

from pathlib import Path
from typing import Any, ClassVar

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs
from model_explorer.node_data_builder import GradientItem, GraphNodeData, NodeDataResult
from model_explorer.node_data_provider import (
    GetConfigEditorsResult,
    NodeDataProvider,
    NodeDataProviderFilter,
    NodeDataProviderMetadata,
    NodeDataProviderResult,
)

from aotair_runtime.errors import AotairError

from .drawn import collections
from .numbers import NUMBERS, numbers_of, read

_ID = "aotair"
_WARMER = [GradientItem(stop=0, bgColor="#ffffff"), GradientItem(stop=1, bgColor="#e67e22")]


class ArtifactAdapter(Adapter):
    """Opens the `program.msgpack` of an artifact; the other files are read where they lie beside it."""

    metadata = AdapterMetadata(
        id=_ID, name="aotair", description="The programs of an aotair artifact, by module", fileExts=["msgpack"]
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        program, debug = read(Path(model_path).parent)
        return {"graphCollections": collections(program, debug)}


class Numbers(NodeDataProvider):
    """A number for each call of a bucket."""

    metadata: ClassVar = [
        NodeDataProviderMetadata(
            id=f"{_ID}_{name}",
            name=f"aotair: {name}",
            description=says,
            icon="speed",
            filter=NodeDataProviderFilter(adapterIds=[_ID]),
        )
        for name, says in NUMBERS.items()
    ]

    def get_config_editors(self, provider_id: str) -> GetConfigEditorsResult:
        return GetConfigEditorsResult(configEditors=[])

    def run(
        self, provider_id: str, model_path: str, graph_id: str, config_values: dict[str, Any], graph: Any
    ) -> NodeDataProviderResult:
        name = provider_id.removeprefix(f"{_ID}_")
        try:
            found = numbers_of(Path(model_path).parent, graph_id, name)
        except AotairError as error:
            return NodeDataProviderResult(error=str(error))
        results = {node: NodeDataResult(value=value) for node, value in found.items()}
        gradient = [] if any(isinstance(value, str) for value in found.values()) else _WARMER
        return NodeDataProviderResult(result=GraphNodeData(results=results, name=name, gradient=gradient))
