"""One graph of a model with symbolic sizes: what its placeholders are, what it returns, and why others are refused."""

from exports import exported

from aotair.graph.show import show


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
