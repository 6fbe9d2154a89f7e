"""Each stage of the line on its own: export, passes, specialise, lifetimes; the graphs as golden text."""

import torch
from cases import RECIPES
from graphs import targets, trace

from aotair.export.export import export
from aotair.graph.show import show
from aotair.lower.select import select
from aotair.lower.specialise import specialise
from aotair.model.load import load_model
from aotair.passes import pipeline
from aotair.passes.observer import Observer
from aotair.plan.lifetimes import lifetimes
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.target.target import Target
from aotair_runtime.format.schema import Space


def exported(name: str):
    recipe = job_of(parse_recipe(RECIPES[name]))
    return recipe, export(load_model(recipe), recipe.entries[0])


def test_every_stage_of_the_encoder_as_text(golden_text, tmp_path):
    recipe, result = exported("encoder")
    observer = Observer(Target("cpu"), dump=tmp_path)
    observer.stage("export", result.module)
    pipeline.apply(result.module, recipe.config, observer)
    for file in sorted(tmp_path.iterdir()):
        golden_text(f"encoder_{file.name}", file.read_text())
    concrete = specialise(result.module, {"ids": (4, 8), "mask": (4, 8)}, "test")
    golden_text("encoder_specialised.txt", show(concrete))


def test_inputs_are_classified_and_mutations_are_epilogues(golden_text):
    _, counter = exported("counter")
    assert [state.name for state in counter.states.values()] == ["count"]
    assert not counter.constants
    golden_text("counter_export.txt", show(counter.module))
    _, cache = exported("cache")
    assert not cache.states and not cache.constants
    assert list(cache.inputs) == ["x", "cache", "position"]
    golden_text("cache_export.txt", show(cache.module))
    _, linear = exported("linear")
    assert {c.name for c in linear.constants.values()} == {"linear.weight", "linear.bias"}


def test_composites_with_kernels_stay_whole():
    _, result = exported("encoder")
    targets = {str(node.target) for node in result.module.graph.nodes}
    whole = {"linear", "layer_norm", "gelu", "scaled_dot_product_attention", "embedding"}
    assert {f"aten.{name}.default" for name in whole} <= targets


def test_output_sizes_are_expressions_of_the_dimensions():
    _, result = exported("halves")
    (shape,) = result.outputs
    assert shape[0] == ("dim", 0) and shape[1] == 2
    from aotair_runtime.format.sizes import evaluate

    for size in range(3, 40):
        assert evaluate(shape[2], (1, size)) == len(range(1, size, 2))


def test_lifetimes_follow_memory_through_views():
    def function(x):
        a = x + 1  # step 1, alive until the view of it is used
        b = a.view(6)
        c = x * 2  # step 2
        d = b + c.view(6)  # step 3
        return (d.view(2, 3), c)

    module = trace(function, torch.zeros(2, 3))
    lives = lifetimes(module.graph, {"x_1": Space.INPUT}, select(module.graph, Target("cpu")))
    spans = [(item.size, item.first, item.last) for item in lives.intervals]
    assert spans == [(24, 0, 2), (24, 1, 3), (24, 2, 4), (24, 3, 4)]
    nodes = {node.name: node for node in module.graph.nodes}
    assert lives.home(nodes["view"]) == lives.home(nodes["add"])


def test_specialising_leaves_no_sizes_and_copies_constants_that_are_returned():
    _, result = exported("encoder")
    concrete = specialise(result.module, {"ids": (1, 4), "mask": (1, 4)}, "test")
    for node in concrete.graph.nodes:
        assert "sym" not in str(node.target)
        value = node.meta["val"] if node.op != "output" else None
        if isinstance(value, torch.Tensor):
            assert all(type(size) is int for size in value.shape)
    _, views = exported("views")
    concrete = specialise(views.module, {"x": (3, 4)}, "test")
    returned = concrete.graph.output_node().args[0][1]
    assert returned.target is torch.ops.aten.clone.default


def test_lowering_makes_the_composites_own_calls():
    _, result = exported("linear")
    concrete = specialise(result.module, {"x": (4, 4)}, "test")
    assert targets(concrete) == ["aten.t.default", "aten.addmm.default"]
