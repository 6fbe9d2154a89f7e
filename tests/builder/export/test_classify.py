"""What came back from torch.export: purposes of placeholders, mutations as copies at the end, sizes and structures."""

import pytest
import sympy
import torch
from exports import entry_of, model_of, shaped
from graphs import targets
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from aotair.errors import UnsupportedError
from aotair.export.classify import _in_terms_of, _make_epilogues, _with_lasting_names
from aotair.export.export import export
from aotair_runtime.format.sizes import evaluate

N = sympy.Symbol("s0", integer=True, positive=True)
ROWS = shaped("n", 3)


def of(forward, inputs: dict | None = None, buckets=None, **parts):
    """The graph of a method with one input of rows."""
    model = model_of(forward, **parts)
    return export(model, entry_of(model, inputs or {"x": ROWS}, {"n": [2, 5]} if buckets is None else buckets))


def refused(forward, *args, **parts) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        of(forward, *args, **parts)
    return caught.value


# ---- what placeholders are -------------------------------------------------------------------------------------------


def test_parameters_buffers_and_literals_are_constants_by_the_models_names():
    model = model_of(lambda self, x: x * self.w + self.b + self.aside + torch.tensor([1.0, 2.0, 3.0]))
    model.w = torch.nn.Parameter(torch.ones(3))
    model.register_buffer("b", torch.zeros(3))
    model.register_buffer("aside", torch.full((3,), 5.0), persistent=False)
    found = export(model, entry_of(model, {"x": ROWS}, {"n": [2, 5]}))
    values = {constant.name: constant.tensor for constant in found.constants.values()}
    assert found.states == {} and set(values) >= {"w", "b", "aside"} and len(values) == 4
    assert values["w"].data_ptr() == model.w.data_ptr() and not values["w"].requires_grad
    assert any(torch.equal(value, torch.tensor([1.0, 2.0, 3.0])) for value in values.values())


def _counts(self, x):
    self.count.add_(1)
    return x + self.count + self.other


def test_a_buffer_that_is_written_is_a_state_and_others_are_constants():
    found = of(_counts, count=torch.zeros(3), other=torch.ones(3))
    assert [state.name for state in found.states.values()] == ["count"]
    assert [constant.name for constant in found.constants.values()] == ["other"]
    *_, last, _ = found.module.graph.nodes
    assert last.target is torch.ops.aten.copy_.default and last.args[0].name == next(iter(found.states))


def test_inputs_keep_the_recipes_order_and_names():
    found = of(lambda self, b, a: a - b, {"a": ROWS, "b": ROWS})
    assert list(found.inputs) == ["a", "b"]
    assert (found.placeholder("a").name, found.placeholder("b").name) == ("a", "b")


@pytest.mark.parametrize("name", ["input", "print", "list"])
def test_an_input_named_as_a_builtin_is_found(name):
    namespace: dict = {}
    exec(f"def forward(self, {name}): return {name} + 1", namespace)
    found = of(namespace["forward"], {name: ROWS})
    assert found.placeholder(name).op == "placeholder" and list(found.inputs) == [name]


def _writes(self, x, cache):
    cache.copy_(x * 2)
    return cache + 1


def test_an_input_that_is_written_has_to_be_declared():
    error = refused(_writes, {"x": ROWS, "cache": ROWS})
    assert error.what == "the model writes into its input 'cache'" and error.fix == "add mutated: true to inputs.cache"
    found = of(_writes, {"x": ROWS, "cache": ROWS | {"mutated": True}})
    assert targets(found.module)[-1] == "aten.copy_.default" and found.states == {}


# ---- what cannot be an artifact's ------------------------------------------------------------------------------------


def test_a_parameter_that_is_written_is_refused():
    def forward(self, x):
        self.w.add_(1)
        return x * self.w

    model = model_of(forward)
    model.w = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    with pytest.raises(UnsupportedError, match="writes into its parameter 'w'") as caught:
        export(model, entry_of(model, {"x": ROWS}, {"n": [2, 5]}))
    assert "register_buffer" in caught.value.fix


def test_an_output_that_is_a_size_is_refused_with_its_number():
    error = refused(lambda self, x: (x, x.shape[0]))
    assert error.what.startswith("the model returns a size as the output 1")


def test_a_number_that_is_the_same_for_all_sizes_is_a_constant():
    found = of(lambda self, x: (x + 1, x.shape[1], "text", None, True))
    kinds = [("tensor", 0), ("const", 3), ("const", "text"), ("const", None), ("const", True)]
    assert found.structure == ("tuple", *kinds) and len(found.outputs) == 1


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex128])
def test_what_no_weights_file_holds_is_refused(dtype):
    error = refused(lambda self, x: (x.to(dtype),))
    assert f"is {str(dtype).removeprefix('torch.')}" in error.what and error.what.startswith("the output 0")
    assert error.expected == "a dtype of .safetensors files"


def test_a_constant_of_such_a_dtype_is_refused_by_its_name():
    error = refused(lambda self, x: x + self.table.real.float(), table=torch.ones(3, dtype=torch.complex128))
    assert error.what == "table is complex128"


# ---- names -----------------------------------------------------------------------------------------------------------


def placeholders(*names: str) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    nodes = []
    for name in names:
        node = graph.placeholder("x")
        node.name = node.target = name
        nodes.append(node)
    graph.output(tuple(nodes))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("names", "renamed"),
    [
        (["x", "weight"], ["x", "weight"]),
        (["input"], ["input_1"]),
        (["input", "input_1"], ["input_1_", "input_1"]),
        (["x", "print", "float"], ["x", "print_1", "float_1"]),
    ],
)
def test_names_that_a_copy_would_not_keep_are_changed(names, renamed):
    module = placeholders(*names)
    places = _with_lasting_names(module)
    found = [node.name for node in module.graph.find_nodes(op="placeholder")]
    assert places == dict(zip(names, found)) and len(set(found)) == len(found)
    copied = torch.fx.Graph()
    copied.graph_copy(module.graph, {})
    assert [node.name for node in copied.find_nodes(op="placeholder")] == found
    assert [name == new for name, new in zip(names, found)] == [name == new for name, new in zip(names, renamed)]


# ---- mutations at the end --------------------------------------------------------------------------------------------


def _swap(self, x):
    a, b = self.a.clone(), self.b.clone()
    self.a.copy_(b)
    self.b.copy_(a)
    return x + self.a


def _returns_the_old(self, x):
    old = self.a.clone()
    self.a.copy_(x[0])
    return old, self.a


def _returns_a_view_of_the_old(self, x):
    old = self.a * 1
    self.a.add_(x[0])
    return old[:2], self.a[1:], x


@pytest.mark.parametrize("forward", [_swap, _returns_the_old, _returns_a_view_of_the_old])
def test_old_values_are_saved_before_they_are_overwritten(forward):
    state = {"a": torch.tensor([1.0, 2.0, 3.0]), "b": torch.tensor([4.0, 5.0, 6.0])}
    model, x = model_of(forward, **{name: value.clone() for name, value in state.items()}), torch.randn(4, 3)
    found = export(model, entry_of(model, {"x": ROWS}, {"n": [2, 5]}))
    tensors = {**found.constants, **found.states}
    held = {place: tensors[place].tensor.clone() for place in tensors}
    names = [node.name for node in found.module.graph.find_nodes(op="placeholder")]
    want = model(x)
    got = found.module(*(held.get(name, x) for name in names))
    for mine, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert torch.equal(mine, theirs)
    for place in found.states:
        assert torch.equal(held[place], getattr(model, tensors[place].name)), "and the new values are there"


@pytest.mark.parametrize("view", [False, True])
def test_what_stands_for_an_old_value_is_saved_first(view):
    """a and b change places, and the old a is returned; each in a graph that knows the old ones as placeholders."""
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    for node in (a, b):
        node.meta["val"] = torch.zeros(3)
    old = graph.call_function(torch.ops.aten.view.default, (a, [3])) if view else a
    old.meta["val"] = a.meta["val"]
    graph.output((b, old, old))
    kinds = (OutputKind.BUFFER_MUTATION, "one"), (OutputKind.BUFFER_MUTATION, "two"), (OutputKind.USER_OUTPUT, None)
    specs = [OutputSpec(kind, TensorArgument("x"), target) for kind, target in kinds]
    module = torch.fx.GraphModule({}, graph)
    written = _make_epilogues(module, specs, {kinds[0]: "a", kinds[1]: "b"})
    assert written == {"a", "b"}
    one, two = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    (returned,) = module(one, two)
    assert one.tolist() == [4.0, 5.0, 6.0] and two.tolist() == returned.tolist() == [1.0, 2.0, 3.0]


def test_an_output_of_a_kind_that_nobody_knows_is_refused():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((x,))
    module = torch.fx.GraphModule({}, graph)
    spec = OutputSpec(OutputKind.LOSS_OUTPUT, TensorArgument("x"), None)
    with pytest.raises(UnsupportedError, match="an output of the kind LOSS_OUTPUT"):
        _make_epilogues(module, [spec], {})


# ---- sizes of outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "size"),
    [
        (lambda self, x: x + 1, lambda n: (n, 3)),
        (lambda self, x: x.t(), lambda n: (3, n)),
        (lambda self, x: torch.cat([x, x[:1]]), lambda n: (n + 1, 3)),
        (lambda self, x: x.flatten(), lambda n: (3 * n,)),
        (lambda self, x: x[::2], lambda n: ((n + 1) // 2, 3)),
        (lambda self, x: x[1:], lambda n: (n - 1, 3)),
        (lambda self, x: x @ x.t(), lambda n: (n, n)),
        (lambda self, x: x.sum(), lambda n: ()),
        (lambda self, x: x.new_zeros(4, 0), lambda n: (4, 0)),
    ],
)
def test_sizes_of_outputs_are_expressions_of_the_dimensions(forward, size):
    (shape,) = of(forward, buckets={"n": [4, 9]}).outputs
    for n in range(4, 10):
        assert tuple(evaluate(expr, (n,)) for expr in shape) == size(n)


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (N, {N: ("dim", 2)}),
        (2 * N, {N: ("//", ("+", ("dim", 2), 0), 2)}),
        (N + 1, {N: ("//", ("+", ("dim", 2), -1), 1)}),
        (3 * N + 2, {N: ("//", ("+", ("dim", 2), -2), 3)}),
        (N**2, {}),  # not linear
        (100 * N + 99, {}),  # no size below 64 is one
        (N * sympy.Symbol("s1"), {}),  # two symbols
    ],
)
def test_the_symbol_of_a_linear_size_is_told_by_its_dimension(size, found):
    assert _in_terms_of(size, ("dim", 2)) == found
    for symbol, expr in found.items():
        for value in range(1, 9):
            assert evaluate(expr, (0, 0, int(size.subs(symbol, value)))) == value
