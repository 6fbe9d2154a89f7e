"""Products over one input as one: query, key and value, and gate and up, of a decoder's layers, a step of one sequence.

The weights are merged by the model itself, so that both ways are built alike. What `merge_products` leaves alone rests
on this: a product over all of them reads as many bytes. Medians of blocks that take turns.
"""

import functools

import torch
from torch import Tensor, nn

import aotair

from .common import BUILD, Row, options, report
from .runtimes import medians

LAYERS, WIDTH, KEYS, INNER = 24, 576, 192, 1536  # SmolLM2-135M's
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Layer(nn.Module):
    """The products of a layer, with what lies between them made as cheap as it can be."""

    def __init__(self, merged: bool):
        super().__init__()
        self.attention, self.feed = (WIDTH, KEYS, KEYS), (INNER, INNER)
        self.first = _linears(self.attention, merged)
        self.second = _linears(self.feed, merged)
        self.out, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.rms_norm(x, (WIDTH,))
        query, key, value = _apart(self.first, self.attention, x)
        x = x + self.out(query + torch.cat([key, value, key], -1))
        gate, up = _apart(self.second, self.feed, x)
        return x + self.down(nn.functional.silu(gate) * up)


def _linears(widths: tuple[int, ...], merged: bool) -> nn.ModuleList:
    outputs = [sum(widths)] if merged else widths
    return nn.ModuleList(nn.Linear(WIDTH, width, bias=False) for width in outputs)


def _apart(linears: nn.ModuleList, widths: tuple[int, ...], x: Tensor) -> tuple[Tensor, ...]:
    made = [linear(x) for linear in linears]
    return tuple(made) if len(made) > 1 else made[0].split(widths, -1)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each  [9]")
    given = parser.parse_args()
    rows = []
    for name, kind in KINDS.items():
        for batch in (1, 8):
            x = torch.randn(batch, WIDTH).to(kind)
            calls = {way: functools.partial(_loaded(way, name, batch), x) for way in ("merged", "apart")}
            found = medians(calls, given.blocks)
            text = f"{1e3 * found['merged']:.3f} beside {1e3 * found['apart']:.3f} ms"
            ratio = found["apart"] / found["merged"]
            rows.append(Row(f"{name}, batch {batch}: speed of merged", 1.1, ratio, "x", text, at_least=True))
    report(rows, given.json)


def _loaded(way: str, kind: str, batch: int) -> aotair.Model:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(way == "merged") for _ in range(LAYERS))).to(KINDS[kind]).eval()
    inputs = {"input": {"shape": [batch, WIDTH], "dtype": kind}}
    return aotair.load(aotair.build(model=model, inputs=inputs, out=BUILD / f"{way}-{kind}-{batch}.aotair"))


if __name__ == "__main__":
    main()
