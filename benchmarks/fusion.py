"""What fusion makes of transformers' Llama, Qwen3 and DeepSeek-V3 (decode steps, float16, for an NPU), on this host.

Peer: the same line with `pattern_fusion_pass: false`, and the model in float32.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import aotair
from aotair.builder import build_with_summary
from aotair.export.export import export
from aotair.fusion import RULES
from aotair.model.load import load_model
from aotair.model.quantize import quantize
from aotair.passes import pipeline
from aotair.passes.observer import Observer
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.summary import Listener, Summary
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program

from .common import BUILD, Row, options, report
from .language import MODELS, recipe

STEPS = 16
INT8 = {"quantize": {"linear": "int8_dynamic"}, "verify": {"atol": 0.5, "rtol": 0.5}}
PAIR = "add_rms_norm_dynamic_quant"
_npu = torch.ops.npu


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, default=4)
    given = parser.parse_args()
    rows = [row for name in MODELS for row in (*_halves(name, given.layers), *_int8(name, given.layers))]
    report(rows, given.json)


def _halves(name: str, layers: int) -> Iterator[Row]:
    plain, _ = _built(name, "plain", layers, config={"experimental_config": {"pattern_fusion_pass": False}})
    fused, path = _built(name, "fused", layers)
    model = load_model(job_of(parse_recipe(recipe(name, layers))))
    norms = sum(_is_norm(module) for module in model.modules())
    sums = 2 * layers  # two norms a layer and one at the end; before the very first there is no sum
    lifted, joined = fused.summary.rewrites["lift_rms_norm"], fused.summary.rewrites["lift_add_rms_norm"]
    yield Row(f"{name}: RMS norms lifted", norms, lifted, at_least=True)
    yield Row(f"{name}: residual sums fused into norms", sums, joined, at_least=True)
    far = _distances(name, layers, model, path)
    peer = f"from float32: unfused {far.unfused:.2f}, fused {far.fused:.2f}; their norms {far.ratio:.3f}"
    yield Row(f"{name}: logits, fused from unfused", 2, far.apart, "ulp of the largest", peer)
    ratio = fused.instructions / plain.instructions
    counts = f"{fused.instructions} of {plain.instructions}"
    yield Row(f"{name}: instructions, fused / unfused", 0.6 if name == "llama" else 1, ratio, "x", counts)


@dataclass(frozen=True)
class _Built:
    summary: Summary
    instructions: int


def _built(name: str, kind: str, layers: int, **parts: object) -> tuple[_Built, Path]:
    path = BUILD / f"{name}_{kind}.aotair"
    summary = build_with_summary(recipe(name, layers, **parts), path, Listener())
    (bucket,) = read_program(path).entry_points[0].buckets
    return _Built(summary, len(bucket.code)), path


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm")


# ---- numbers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Far:
    """Largest distances in units in the last place of the largest logit; `ratio`: the fused model's distance from
    float32 over the unfused one's, as norms."""

    apart: float
    unfused: float
    fused: float
    ratio: float


def _distances(name: str, layers: int, unfused: nn.Module, path: Path) -> _Far:
    wide = load_model(job_of(parse_recipe(recipe(name, layers))))
    wide.float()
    fused = aotair.load(path, device="cpu", enable_output_clone=True)
    generator = torch.Generator().manual_seed(1)
    far, sums = [0.0, 0.0, 0.0], [0.0, 0.0]
    for position in range(STEPS):
        ids = torch.randint(0, 512, (2, 1), generator=generator)
        with torch.no_grad():
            exact, half = (model(ids, torch.tensor([position])).double() for model in (wide, unfused))
        got = fused(ids, torch.tensor([position])).double()
        step = 2.0 ** (exact.abs().max().log2().floor().item() - 10)
        for number, away in enumerate((got - half, half - exact, got - exact)):
            far[number] = max(far[number], away.abs().max().item() / step)
        sums = [sums[0] + (half - exact).norm().item(), sums[1] + (got - exact).norm().item()]
    return _Far(*far, sums[1] / sums[0])


# ---- int8 -----------------------------------------------------------------------------------------------------------


def _int8(name: str, layers: int) -> Iterator[Row]:
    built, _ = _built(name, "int8", layers, **INT8)
    fused = built.summary.rewrites[PAIR]
    error = f"relative error of int8 {built.summary.quantised.relative_error:.3f}"
    yield Row(
        f"{name}, int8: norms fused with their quantisation", _pairs(name, layers), fused, "", error, at_least=True
    )
    most, share = _integers(name, layers)
    yield Row(f"{name}, int8: integers off by at most", 1, most)
    yield Row(f"{name}, int8: integers that are off", 0.1, 100 * share, "%")


def _pairs(name: str, layers: int) -> int:
    """Norms with a sum that feed quantised layers only: their result's every use is one quantisation."""
    others = [rule.name for rule in RULES if not rule.lifts]
    parsed = job_of(
        parse_recipe(recipe(name, layers, **INT8, config={"experimental_config": {"disabled_fusion_rules": others}}))
    )
    model = load_model(parsed)
    quantize(model, parsed)
    exported = export(model, parsed.entries[0])
    pipeline.apply(exported.module, parsed.config, Observer(Target("npu")))
    return sum(_feeds_one_quantisation(node) for node in exported.module.graph.nodes)


def _feeds_one_quantisation(node: torch.fx.Node) -> bool:
    if node.target is not _npu.npu_add_rms_norm.default:
        return False
    results = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    users = [user for result in results for user in result.users]
    return [user.target for user in users] == [_npu.npu_dynamic_quant.default]


def _integers(name: str, layers: int) -> tuple[int, float]:
    """The model's own norm and a quantisation against the op that does both, on what each norm gets in a run."""
    model = load_model(job_of(parse_recipe(recipe(name, layers))))
    seen: list[tuple[nn.Module, torch.Tensor]] = []
    for module in model.modules():
        if _is_norm(module):
            module.register_forward_pre_hook(lambda norm, args: seen.append((norm, args[0].clone())))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for position in range(STEPS):
            model(torch.randint(0, 512, (2, 1), generator=generator), torch.tensor([position]))
        counts = [_compared(norm, x) for norm, x in seen]
    return max(most for most, _, _ in counts), sum(off for _, off, _ in counts) / sum(all_ for _, _, all_ in counts)


def _compared(norm: nn.Module, x: torch.Tensor) -> tuple[int, int, int]:
    want, _ = _npu.npu_dynamic_quant(norm.forward(x))  # not its hooks
    got, *_ = _npu.npu_add_rms_norm_dynamic_quant(
        x, torch.zeros_like(x), norm.weight, epsilon=norm.variance_epsilon, output_mask=[True, False]
    )
    away = (want.int() - got.int()).abs()
    return int(away.max()), int((away > 0).sum()), away.numel()


if __name__ == "__main__":
    main()
