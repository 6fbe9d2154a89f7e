"""What an export gives: which buckets it serves, and which of its constants are read."""

import pytest
import torch
from exports import entry_of, exported, model_of, shaped

from aotair.export.export import export
from aotair.export.exported import Exported, NamedTensor


def of(graph: torch.fx.Graph | None = None, **parts) -> Exported:
    module = torch.fx.GraphModule({}, graph or torch.fx.Graph())
    return Exported(
        module, **({"constants": {}, "states": {}, "inputs": {}, "outputs": (), "structure": ("tuple",)} | parts)
    )


def test_without_buckets_it_serves_all():
    assert of().serves((1,)) and of().serves(())


def test_with_buckets_it_serves_those():
    found = of(buckets=((2, 3), (4, 3)))
    assert found.serves((2, 3)) and found.serves((4, 3))
    assert not found.serves((2, 4)) and not found.serves(())


def test_what_is_not_said_is_nothing():
    found = of()
    assert (found.entry, found.buckets, found.why, found.defaults) == ("forward", (), "", ())
    assert found.names.registered == frozenset() and found.names.tied == {}


def test_an_inputs_placeholder_goes_by_the_inputs_name():
    graph = torch.fx.Graph()
    x, ids = graph.placeholder("x"), graph.placeholder("batch_ids")
    graph.output((x, ids))
    found = of(graph, inputs={"x": "x", "batch.ids": "batch_ids"})
    assert found.placeholder("x") is x and found.placeholder("batch.ids") is ids
    with pytest.raises(KeyError):
        found.placeholder("y")


def test_constants_that_nobody_reads_are_left_out():
    graph = torch.fx.Graph()
    w, _ = graph.placeholder("w"), graph.placeholder("v")
    graph.output((w,))
    constants = {name: NamedTensor(name.upper(), torch.zeros(1)) for name in ("w", "v", "gone")}
    found = of(graph, constants=constants).read_constants()
    assert list(found) == ["w"] and found["w"].name == "W"


def test_of_a_model_only_what_its_graph_reads_is_read():
    model = model_of(lambda self, x: x + self.used, used=torch.ones(3), unused=torch.zeros(3))
    found = export(model, entry_of(model, {"x": shaped(2, 3)}))
    assert {constant.name for constant in found.read_constants().values()} == {"used"}
    _, encoder = exported("encoder")
    assert encoder.read_constants().keys() <= encoder.constants.keys()
