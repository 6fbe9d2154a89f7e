"""Products of one input with weights of few bits are one: fires, declines, the same numbers, other checkpoints."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from graphs import answers, reasons, run_pass, targets, trace
from marks import long

import aotair
from aotair.graph.derived import mark_constant
from aotair.passes import merge_products
from aotair_runtime.devices import int8_rows

aten, air, BF16 = torch.ops.aten, torch.ops.air, torch.bfloat16
X, OTHER = torch.randn(5, 64).to(BF16), torch.randn(5, 64).to(BF16)


def four_bits(out: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 256, (out, 32)).to(torch.uint8), torch.randn(2, out, 2).to(BF16)


def eight_bits(out: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(-127, 128, (out, 64)).to(torch.int8), torch.rand(out).to(BF16)


FOUR = [tensor for out in (16, 32, 48) for tensor in four_bits(out)]
EIGHT = [tensor for out in (16, 32, 48) for tensor in eight_bits(out)]


def traced(function, *inputs: torch.Tensor, constants: int = 6) -> torch.fx.GraphModule:
    module = trace(function, *inputs)
    for node in module.graph.find_nodes(op="placeholder")[len(inputs) - constants :]:
        mark_constant(node)
    return module


def merged(function, *inputs: torch.Tensor, constants: int = 6, limit: int | None = None):
    """The graph after the pass, which gives the same numbers."""
    module = traced(function, *inputs, constants=constants)
    want = answers(module, inputs)
    edits = run_pass(merge_products, module, limit)
    for got, wanted in zip(answers(module, inputs), want, strict=True):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, atol=1e-2, rtol=1e-2)
    return module, edits


def products(module: torch.fx.GraphModule) -> int:
    return sum(name.startswith("air.linear_int") for name in targets(module))


def _int4(x, a, fa, b, fb, c, fc):
    weights = ((a, fa), (b, fb), (c, fc))
    return tuple(air.linear_int4(x, rows, 32, factors) for rows, factors in weights)


def _int8(x, a, fa, b, fb, c, fc):
    return tuple(air.linear_int8(x, rows, scale) for rows, scale in ((a, fa), (b, fb), (c, fc)))


def _cast(x, a, fa, b, fb, c, fc):
    return tuple(one.float().relu() for one in _int4(x, a, fa, b, fb, c, fc))


def _computed(x, a, fa, b, fb, c, fc):
    """Constants that are made on the way, after the first product."""
    first = air.linear_int8(x, a, fa)
    return first, air.linear_int8(x, b.flip(0), fb * 2), first + 1, air.linear_int8(x, c, fc + fc)


@pytest.mark.parametrize(("function", "constants"), [(_int4, FOUR), (_int8, EIGHT), (_cast, FOUR), (_computed, EIGHT)])
def test_products_of_one_input_are_one(function, constants):
    module, edits = merged(function, X, *constants)
    assert products(module) == 1 and edits.count == 1


def test_they_are_cast_together():
    module, _ = merged(_cast, X, *FOUR)
    assert targets(module).count("aten._to_copy.default") == 1


def _other_inputs(x, y, a, fa, b, fb, c, fc):
    return air.linear_int8(x, a, fa), air.linear_int8(y, b, fb), air.linear_int8(x + y, c, fc)


def test_what_reads_something_else_stays():
    module, edits = merged(_other_inputs, X, OTHER, *EIGHT)
    assert products(module) == 3 and edits.count == 0


def test_groups_of_another_size_stay_apart():
    wide = torch.randn(1, 16, 2).to(BF16)

    def function(x, a, fa, fb):
        return air.linear_int4(x, a, 32, fa), air.linear_int4(x, a, 64, fb)

    assert products(merged(function, X, FOUR[0], FOUR[1], wide, constants=3)[0]) == 2


def test_a_weight_that_depends_on_the_call_stays(caplog):
    def function(x, a, fa, b, fb):
        return air.linear_int8(x, a, fa), air.linear_int8(x, b, fb)

    given = (X, *EIGHT[:4])
    assert products(merged(function, *given, constants=2)[0]) == 2
    assert "its weight depends on the call" in reasons(caplog, merge_products, traced(function, *given, constants=2))


def _written_between(x, a, fa, b, fb, c, fc):
    view = x.view(5, 64)
    first = air.linear_int8(view, a, fa)
    aten.mul_.Tensor(x, 2)
    return first, air.linear_int8(view, b, fb), air.linear_int8(x + 1, c, fc)


def test_what_is_written_over_between_two_products_stays(caplog):
    assert products(merged(_written_between, X, *EIGHT)[0]) == 3
    said = reasons(caplog, merge_products, traced(_written_between, X, *EIGHT))
    assert "view is written over" in said


def test_no_leave_no_change():
    module, edits = merged(_int8, X, *EIGHT, limit=0)
    assert products(module) == 3 and edits.count == 0


class Attention(torch.nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.query, self.key = torch.nn.Linear(64, 64), torch.nn.Linear(64, 32, bias=False)
        self.value, self.out = torch.nn.Linear(64, 32), torch.nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.query(x), self.key(x).tanh(), self.value(x).view(-1, 2, 16).transpose(0, 1)
        return self.out(torch.cat([*parts[:2], parts[2].transpose(0, 1).flatten(1)], 1))


def built(path: Path, model: Attention, scheme: str, merge: bool = True) -> Path:
    config = aotair.CompilerConfig()
    config.experimental_config.merge_products = merge
    asked = {"linear": scheme} | ({"group_size": 32} if "int4" in scheme else {})
    given = {"x": {"shape": ["n", 64], "dtype": "float32", "pad": 0}}
    return aotair.build(model=model, out=path, inputs=given, buckets={"n": [2, 100]}, quantize=asked, config=config)


@pytest.mark.parametrize("scheme", [long("int4_weight_only"), "int8_weight_only"])
def test_through_a_build_and_for_other_checkpoints(tmp_path: Path, scheme: str):
    x = torch.randn(100, 64)
    op = "aten::_weight_int4pack_mm_for_cpu" if "int4" in scheme else int8_rows.PACKED
    paths = [built(tmp_path / str(merge), Attention(0), scheme, merge) for merge in (True, False)]
    with aotair.load(paths[0], enable_output_clone=True) as one, aotair.load(paths[1]) as apart:
        counts = []
        for model in (one, apart):
            program = model.program
            names = [program.ops[program.instructions[n].op].name for n in program.entry_points[0].buckets[0].code]
            counts.append(names.count(op))
        assert counts == [2, 4]
        for rows in (1, 2, 100):
            torch.testing.assert_close(one(x[:rows]), apart(x[:rows]), atol=1e-2, rtol=1e-2)
        safetensors.torch.save_file(Attention(1).state_dict(), tmp_path / "w.safetensors")
        one.load_weights(tmp_path / "w.safetensors")
        with aotair.load(built(tmp_path / "fresh", Attention(1), scheme)) as fresh:
            for rows in (2, 100):
                assert torch.equal(one(x[:rows]), fresh(x[:rows]))
