"""One mixture of experts on the CPU: a prompt of many tokens, and one token, beside transformers' own forms.

Peers: transformers' loop over experts (eager PyTorch), and an artifact of its `batched_mm`, which copies the weights of
an expert once for each token.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import transformers as tf
from torch import nn

import aotair
from aotair.hf.experts import serve

from .common import BUILD, Row, options, report

_WIDTH, _INNER, _EXPERTS, _CHOSEN = 512, 1024, 16, 2
_FORMS = ("aotair", "batched_mm")


class Block(nn.Module):
    """Tokens (tokens, width) to what Mixtral's experts make of them; `form`: the experts' implementation."""

    def __init__(self, form: str, dtype: str = "float32"):
        super().__init__()
        config = tf.MixtralConfig(
            vocab_size=8,
            hidden_size=_WIDTH,
            intermediate_size=_INNER,
            num_hidden_layers=1,
            num_local_experts=_EXPERTS,
            num_experts_per_tok=_CHOSEN,
        )
        torch.manual_seed(0)
        model = tf.MixtralForCausalLM(config).to(getattr(torch, dtype))
        if form == "aotair":
            serve(model)
        else:
            model.set_experts_implementation(form)
        self.block = model.model.layers[0].mlp.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x[None])[0]


def main() -> None:
    given = options(__doc__).parse_args()
    rows: list[Row] = []
    for dtype in ("float32", "bfloat16"):
        for tokens in (128, 1):
            rows += _rows(dtype, tokens, given.rebuild)
            print(*rows[-3:], sep="\n", flush=True)
    report(rows, given.json)


def _rows(dtype: str, tokens: int, rebuild: bool) -> list[Row]:
    served = {form: _served(form, dtype, tokens, rebuild) for form in _FORMS}
    loop = Block("eager", dtype)
    x = torch.randn(tokens, _WIDTH).to(getattr(torch, dtype))
    with torch.no_grad():
        want = loop(x)
        apart = (served["aotair"](x) - want).abs().max() / want.abs().max()
        times = _medians([lambda: served["aotair"](x), lambda: served["batched_mm"](x), lambda: loop(x)])
    what = f"{dtype}, {tokens} token{'s' if tokens > 1 else ''}"
    peer = f"{times[0]:.2f} ms, {{:.2f}} ms"
    return [
        Row(f"{what}: from the loop, of the largest", 1e-5 if dtype == "float32" else 2e-2, float(apart)),
        Row(f"{what}: time / loop's", 1, times[0] / times[2], "x", peer.format(times[2])),
        Row(f"{what}: time / batched_mm's", 1, times[0] / times[1], "x", peer.format(times[1])),
    ]


def _served(form: str, dtype: str, tokens: int, rebuild: bool) -> aotair.Model:
    path = BUILD / f"experts_{form}_{dtype}_{tokens}.aotair"
    if rebuild or not path.exists():
        aotair.build(
            {
                "name": "experts",
                "model": {"factory": f"{__file__}:Block", "kwargs": {"form": form, "dtype": dtype}, "dtype": dtype},
                "inputs": {"x": {"shape": [tokens, _WIDTH], "dtype": dtype}},
                "verify": {"atol": 1e-1, "rtol": 1e-1} if dtype == "bfloat16" else {},
            },
            path,
        )
    return aotair.load(path, enable_output_clone=True)


def _medians(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Milliseconds of each, from rounds in which they take turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(14):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            if turn > 3:
                times.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(times) for times in taken]


if __name__ == "__main__":
    main()
