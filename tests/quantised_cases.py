"""Layers that tools quantised: what the tests of such checkpoints build, and of what."""

import json
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import quantised_layouts as layouts
import quantised_tools as tools
import torch

from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe

TOOLS = Path(tools.__file__)
ROWS = 3


def recipe(weights: Path, device: str = "cpu", dtype: str | None = None, **parts: object) -> dict:
    """One for the stack of linears, over a checkpoint."""
    half = dtype in ("float16", "bfloat16")
    return {
        "name": "stack",
        "model": {"factory": f"{TOOLS}:stack", "kwargs": {"seed": 9}, "weights": str(weights), "dtype": dtype},
        "target": {"device": device},
        "inputs": {"input": {"shape": ["n", 64], "dtype": dtype or "float32", "pad": 0}},
        "buckets": {"n": [1, 4]},
        "verify": {"atol": 2e-2, "rtol": 2e-2} if half else {},
        **parts,
    }


# Where activations are rounded, a last bit that differs between kernels of two sizes may be a whole step.
STEPS = {"verify": {"atol": 0.5, "rtol": 2e-2}}


def modules(weights: Path, device: str = "cpu", dtype: str | None = None) -> torch.nn.Module:
    return load_model(job_of(parse_recipe(recipe(weights, device, dtype))))


def x(seed: int = 0) -> torch.Tensor:
    """Rows whose largest number is positive: it is 127.5 scales of int8, which all round to 127. Of a negative one, the
    last bit says whether the tools take -127 or -128."""
    rows = torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(seed))
    return rows * rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()


def near(got: torch.Tensor, want: torch.Tensor, within: float = 1e-5) -> None:
    assert got.dtype == want.dtype and want.abs().max() > 0.1
    torch.testing.assert_close(got, want, atol=within, rtol=within)


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
FIXED = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}
ASYMMETRIC = {"symmetric": False}

COMPRESSED = {
    "w8a8": {"weights": INT8, "input_activations": TOKEN},
    "w8a8, zero points": {"weights": INT8 | ASYMMETRIC, "input_activations": TOKEN | ASYMMETRIC},
    "w8a8, static": {"weights": INT8, "input_activations": FIXED},
    "w8a8, static, zero points": {"weights": INT8, "input_activations": FIXED | ASYMMETRIC},
    "w8a8, one scale": {"weights": INT8 | {"strategy": "tensor"}, "input_activations": TOKEN},
    "w4a16": {"weights": INT4},
    "w4a16, zero points": {"weights": INT4 | ASYMMETRIC},
    "w4a16, rows": {"weights": {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": False}},
    "w8a16, zero points": {"weights": INT8 | ASYMMETRIC | {"strategy": "group", "group_size": 16}},
    "w4a8": {"weights": INT4, "input_activations": TOKEN},
    "float8": {"weights": FLOAT8, "input_activations": TOKEN | {"type": "float"}},
    "float8, static": {"weights": FLOAT8 | {"strategy": "tensor"}, "input_activations": FIXED | {"type": "float"}},
    "float8, blocks": {
        "weights": FLOAT8 | {"strategy": "block", "block_structure": [32, 32]},
        "input_activations": TOKEN | {"type": "float", "strategy": "group", "group_size": 32},
    },
}


def compressed(folder: Path, scheme: dict, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return tools.compress(tools.stack(seed, dtype), folder, {"group_0": {"targets": ["Linear"], **scheme}}, [])


BIAS = torch.linspace(-1, 1, 96)
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def packed(make: Callable, folder: Path, config: dict, seed: int = 0, **options: object) -> Callable:
    """A checkpoint of the stack with both layers packed, and what it computes."""
    first, one = make("0", seed, 96, 64, 32, **options)
    second, two = make("2", seed + 1, 40, 96, 32, **options)
    layouts.configured(folder, first | second | {"0.bias": BIAS}, config)
    return lambda given: (given @ one.t() + BIAS).relu() @ two.t()


def slim(folder: Path, kind: str, seed: int = 0) -> dict[str, torch.Tensor]:
    tensors = layouts.msmodelslim("0", seed, kind, 96, 64, BIAS)
    tensors |= layouts.msmodelslim("2", seed + 1, "FLOAT", 40, 96, None)
    layouts.described(folder, tensors, {"0": kind, "2": "FLOAT"})
    return tensors


def _torchao() -> dict[str, Callable[[], object]]:
    def config(name: str, **options: object) -> Callable[[], object]:
        def make() -> object:
            import torchao.quantization as ao

            values = {key: value(ao) if isinstance(value, FunctionType) else value for key, value in options.items()}
            return getattr(ao, name)(**values)

        return make

    int4 = {"weight_dtype": torch.int4}
    return {
        "int8 weights": config("Int8WeightOnlyConfig"),
        "int8 weights, groups": config("Int8WeightOnlyConfig", granularity=lambda ao: ao.PerGroup(32)),
        "int8 dynamic": config("Int8DynamicActivationInt8WeightConfig"),
        "int8 dynamic, zero points": config(
            "Int8DynamicActivationInt8WeightConfig", act_mapping_type=lambda ao: ao.MappingType.ASYMMETRIC
        ),
        "int8 static": config(
            "Int8StaticActivationInt8WeightConfig",
            act_quant_scale=torch.tensor([[0.02]]),
            granularity=lambda ao: [ao.PerTensor(), ao.PerRow()],
        ),
        "int4 weights": config("IntxWeightOnlyConfig", granularity=lambda ao: ao.PerGroup(32), **int4),
        "int4 weights, int8 dynamic": config(
            "Int8DynamicActivationIntxWeightConfig", weight_granularity=lambda ao: ao.PerGroup(32), **int4
        ),
        "float8 weights": config("Float8WeightOnlyConfig"),
    }


TORCHAO = _torchao()


def change(folder: Path, edit: Callable[[dict], object]) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    edit(config["quantization_config"])
    file.write_text(json.dumps(config))
