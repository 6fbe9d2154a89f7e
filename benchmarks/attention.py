"""Attention on the CPU in float32: two products and a softmax beside torch's flash kernel, by length.

Heads lie as one projection makes them, a mask leaves out some keys of each sentence, and the result is written where a
plan would have it. Medians of blocks that take turns.
"""

import torch

from aotair_runtime.devices.short_attention import prepared
from aotair_runtime.format.text import table

from .common import Row, options, report
from .runtimes import medians

SIZES = ((1, 96, 12, 32), (1, 128, 12, 32), (5, 100, 12, 32), (8, 128, 12, 32), (8, 128, 12, 64), (4, 197, 12, 64))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of a call  [2]")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each  [5]")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lines, rows = [], []
    for size in SIZES:
        with torch.inference_mode():
            times = _measured(*size, given.blocks)
        ratio = times["two products"] / times["torch"]
        what = "batch {}, {} tokens, {} heads of {}".format(*size)
        lines.append([what, *(f"{1e6 * value:.0f}" for value in times.values()), f"{ratio:.2f}"])
        rows.append(Row(f"{what}: / torch", 1.0, ratio, "x"))
    print(table(["us", "torch", "two products", "ratio"], lines) + "\n", flush=True)
    report(rows, given.json)


def _measured(batch: int, length: int, heads: int, width: int, blocks: int) -> dict[str, float]:
    query, key, value, place = (torch.randn(batch, length, heads, width).transpose(1, 2) for _ in range(4))
    mask = (torch.arange(length) < length - 3).expand(batch, 1, length, length)
    call = prepared((query, key, value, mask), {}, place)
    if call is None:
        raise SystemExit(f"{length} tokens are not taken")

    def by_torch() -> torch.Tensor:
        return place.copy_(torch.nn.functional.scaled_dot_product_attention(query, key, value, mask))

    def by_products() -> torch.Tensor:
        call()
        return place

    return medians({"torch": by_torch, "two products": by_products}, blocks)


if __name__ == "__main__":
    main()
