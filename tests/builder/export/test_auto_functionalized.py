"""Custom ops that write into their arguments: as calls of the ops themselves, on copies of what they write."""

import pytest
import torch
from graphs import targets

from aotair.export.auto_functionalized import decompose, is_auto_functionalized

library = torch.library.Library("aotairauto", "FRAGMENT")


def define(schema: str, function) -> None:
    library.define(schema)
    library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")


def _bump(x, by):
    x.add_(by)


def _bump_both(x, y):
    x.add_(1)
    y.mul_(2)
    return x + y


def _bump_all(xs):
    for x in xs:
        x.add_(1)


define("bump(Tensor(a!) x, Tensor by) -> ()", _bump)
define("bump_both(Tensor(a!) x, Tensor(b!) y) -> Tensor", _bump_both)
define("bump_all(Tensor(a!)[] xs) -> ()", _bump_all)
ops = torch.ops.aotairauto


class Model(torch.nn.Module):
    def __init__(self, forward):
        super().__init__()
        self._function = forward

    def forward(self, x):
        return self._function(x)


def _one(x):
    y = x + 1
    ops.bump(y, x)
    return (y * 2,)


def _a_view(x):
    y = x + 1
    ops.bump(y[1:], x[1:])
    return (y,)


def _two(x):
    y, z = x + 1, x * 2
    return (ops.bump_both(y, z), y, z)


def _a_list(x):
    y, z = x + 1, x * 2
    ops.bump_all([y, z])
    return (y + z,)


def _twice(x):
    y = x + 1
    ops.bump(y, x)
    ops.bump(y, x * 3)
    return (y,)


CASES = {"one": _one, "a view": _a_view, "two": _two, "a list": _a_list, "twice": _twice}


def exported(function, x: torch.Tensor) -> torch.fx.GraphModule:
    program = torch.export.export(Model(function), (x,), strict=False).run_decompositions({})
    return torch.fx.GraphModule(program.graph_module, program.graph_module.graph)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("x", [torch.arange(6.0).view(3, 2), torch.zeros(1, 1), torch.arange(6).view(2, 3).t()])
def test_the_op_is_called_itself_and_computes_the_same(name, x):
    module = exported(CASES[name], x)
    assert any(map(is_auto_functionalized, module.graph.nodes))
    decompose(module)
    assert not any(map(is_auto_functionalized, module.graph.nodes))
    assert any("aotairauto" in target for target in targets(module))
    module.graph.lint()
    given = x.clone(memory_format=torch.preserve_format)
    for mine, theirs in zip(module(given), CASES[name](x), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(given, x), "the input is not written into"


@pytest.mark.parametrize("name", CASES)
def test_it_writes_into_a_copy(name):
    module = exported(CASES[name], torch.zeros(3, 2))
    decompose(module)
    assert "aten.clone.default" in targets(module)


def test_every_node_knows_what_it_returns():
    module = exported(_one, torch.zeros(3, 2))
    decompose(module)
    for node in module.graph.nodes:
        if node.op == "call_function" and "aotairauto" not in str(node.target):
            assert isinstance(node.meta.get("val"), torch.Tensor), node


def test_a_graph_without_such_an_op_is_left_alone(monkeypatch):
    module = exported(lambda x: (x + 1,), torch.zeros(3, 2))
    before = module.code
    monkeypatch.setattr(module, "recompile", lambda: pytest.fail("nothing has changed"))
    decompose(module)
    assert module.code == before


def test_only_the_two_wrappers_are_taken_for_one():
    graph = torch.fx.Graph()
    higher = torch.ops.higher_order
    for target, wrapper in (
        (higher.auto_functionalized, True),
        (higher.auto_functionalized_v2, True),
        (higher.cond, False),
        (torch.ops.aten.add_.Tensor, False),
    ):
        assert is_auto_functionalized(graph.call_function(target)) is wrapper
    assert not is_auto_functionalized(graph.placeholder("x"))
