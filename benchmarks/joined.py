"""Small ops of the CPU: by aotair-kernels beside torch's own calls, by rows; and whole replays with and without it.

What `aotair_runtime/steps` takes (`MOST` numbers, attentions that are small, products of few rows) rests on these. The
replays are those of artifacts: by default SmolLM2's (`make chat`) and the sentence encoder's. Medians of blocks that
take turns.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import aotair
from aotair_runtime.devices import onednn_product
from aotair_runtime.format.text import table
from aotair_runtime.steps import join, library, products
from aotair_runtime.steps import table as steps
from aotair_runtime.steps.join import Joined, Named
from aotair_runtime.steps.written import Steps

from .common import Row, artifact, options, report
from .five_shapes import SHAPES
from .runtimes import medians

ROWS, MANY_ROWS, WIDTH = (1, 16, 64), 2048, 768
IMAGE, NORMED = (1, 64, 32, 32), ((1, 64, 64, 64), (1, 256, 16, 16), (1, 256, 8, 8))
QUERIES = (
    *((1, 12, 16, 16, 32), (2, 12, 24, 24, 32), (1, 12, 128, 128, 32), (5, 12, 100, 100, 32), (8, 12, 128, 128, 32)),
    *((1, 9, 1, 512, 64), (8, 9, 1, 512, 64), (1, 9, 128, 512, 64), (1, 12, 197, 197, 64), (1, 6, 1500, 1500, 64)),
    *((1, 12, 32, 32, 64), (1, 12, 64, 64, 64), (4, 12, 128, 128, 64), (1, 8, 64, 64, 160), (1, 8, 256, 256, 80)),
)
WEIGHTS = ((576, 192), (576, 576), (576, 1536), (1536, 576), (576, 49152), (4096, 4096))  # in, out
LARGE = 160_000_000  # bytes of weights that are read in turn
SMOLLM2 = Path("build/smollm2.aotair")
_aten, _air = torch.ops.aten, torch.ops.air
Case = tuple[Any, Sequence[object], Mapping[str, object], list[torch.Tensor] | None]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--artifact", type=Path, action="append", help="of a language model or an encoder")
    parser.add_argument("--blocks", type=int, default=7, help="blocks of each  [7]")
    given = parser.parse_args()
    if library.run() is None:
        raise SystemExit(f"aotair-kernels: {library.why_none()}")
    with torch.inference_mode():
        rows = [*_ops(given.blocks), *_attentions(given.blocks), *_products(given.blocks)]
    for path in given.artifact or [SMOLLM2, artifact("minilm", given.rebuild)]:
        rows += _replays(path, given.blocks)
    report(rows, given.json)


# ---- ops -------------------------------------------------------------------------------------------------------------


def _ops(blocks: int) -> Iterator[Row]:
    lines = []
    for kind in (torch.float32, torch.bfloat16):
        for count in ROWS:
            cases = {f"{name}, {count} rows of {WIDTH}": case for name, case in _cases(count, kind).items()}
            for name, case in (cases | _large_cases(kind) if count == ROWS[0] else cases).items():
                ours, torchs = _measured(case, blocks)
                what = f"{name}, {str(kind).removeprefix('torch.')}"
                lines.append([what, f"{1e6 * torchs:.1f}", f"{1e6 * ours:.1f}", f"{ours / torchs:.2f}"])
                yield Row(f"{what}: / torch", 1.0, ours / torchs, "x")
    print(table(["us", "torch", "joined", "ratio"], lines) + "\n", flush=True)


def _cases(count: int, kind: torch.dtype) -> dict[str, Case]:
    x, y, out = (torch.randn(count, WIDTH).to(kind) for _ in range(3))
    row, column = torch.randn(WIDTH).to(kind), torch.empty(count, 1, dtype=kind)
    numbers = torch.arange(count)
    whole = {"tokens": torch.empty(count, WIDTH, dtype=torch.int8), "scale": torch.empty(count, 1)}
    return {
        "product": (_aten.mul.out, (x, y), {"out": out}, None),
        "product with a row": (_aten.mul.out, (x, row), {"out": out}, None),
        "cast": (_aten.copy_.default, (torch.empty(count, WIDTH), x), {}, None),
        "mean": (_aten.mean.out, (x, [-1], True), {"out": column}, None),
        "silu": (_aten.silu.out, (x,), {"out": out}, None),
        "gelu": (_aten.gelu.out, (x,), {"out": out}, None),
        "tanh": (_aten.tanh.out, (x,), {"out": out}, None),
        "layer norm": (_aten.layer_norm.default, (x, [WIDTH], row, row, 1e-5), {}, [out]),
        "softmax": (_aten._softmax.out, (x, -1, False), {"out": out}, None),
        "rows by number": (_aten.index_select.out, (x, 0, numbers), {"out": out}, None),
        "rows into a cache": (_aten.index_copy_.default, (x, 0, numbers, y), {}, None),
        "int8 of rows": (_air.dynamic_quant.out, (x,), whole, None),
    }


def _large_cases(kind: torch.dtype) -> dict[str, Case]:
    """What torch is slow in with any number of numbers; and images in channels-last."""
    x, out = (torch.randn(MANY_ROWS, WIDTH).to(kind) for _ in range(2))
    image, other = (torch.randn(IMAGE).to(kind).contiguous(memory_format=torch.channels_last) for _ in range(2))
    norms = dict[str, Case]()
    for shape in NORMED:
        given, made = (torch.randn(shape).to(kind).contiguous(memory_format=torch.channels_last) for _ in range(2))
        norms[f"norm of 32 groups of images {list(shape)}"] = (_aten.group_norm.default, (given, 32), {}, [made])
    return norms | {
        f"tanh, {MANY_ROWS} rows of {WIDTH}": (_aten.tanh.out, (x,), {"out": out}, None),
        f"gelu by tanh, {MANY_ROWS} rows of {WIDTH}": (_aten.gelu.out, (x,), {"out": out, "approximate": "tanh"}, None),
        f"sum of images {list(IMAGE)}": (_aten.add_.Tensor, (image, other), {}, None),
        f"relu of images {list(IMAGE)}": (_aten.relu_.default, (image,), {}, None),
    }


def _attentions(blocks: int) -> Iterator[Row]:
    lines = []
    for kind in (torch.float32, torch.bfloat16):
        for batch, heads, rows, keys, width in QUERIES:
            sizes = (rows, keys, keys)
            q, k, v = (torch.randn(batch, size, heads, width).to(kind).transpose(1, 2) for size in sizes)
            seen, out = torch.ones(batch, 1, rows, keys, dtype=torch.bool), torch.empty_like(q)
            found = _measured((_aten.scaled_dot_product_attention.default, (q, k, v, seen), {}, [out]), blocks)
            if found is None:
                continue
            what = f"attention of {batch} x {heads} x {rows} queries, {keys} keys, {str(kind).removeprefix('torch.')}"
            ours, torchs = found
            lines.append([what, f"{1e6 * torchs:.1f}", f"{1e6 * ours:.1f}", f"{ours / torchs:.2f}"])
            yield Row(f"{what}: / torch", 1.0, ours / torchs, "x")
    print(table(["us", "torch", "joined", "ratio"], lines) + "\n", flush=True)


def _products(blocks: int) -> Iterator[Row]:
    """Products with weights that no cache holds, beside a prepared kernel of oneDNN."""
    lines, kernel = [], library.run()
    assert kernel is not None
    for kind in (torch.float32, torch.bfloat16):
        for width, outs in WEIGHTS:
            if not onednn_product.takes((outs, width), kind):
                continue
            count = max(1, LARGE // (width * outs * kind.itemsize))
            weights = [onednn_product.LibraryWeight(torch.randn(outs, width).to(kind)) for _ in range(count)]
            for rows in (1, 2, 4, 8, 16):
                found = _product(weights, torch.randn(rows, width).to(kind), kernel, blocks)
                if found is None:
                    continue
                ours, theirs = (one / count for one in found)
                what = f"{rows} rows of {width} by {outs} x {width}, {str(kind).removeprefix('torch.')}"
                lines.append([what, f"{1e6 * theirs:.1f}", f"{1e6 * ours:.1f}", f"{ours / theirs:.2f}"])
                yield Row(f"{what}: / oneDNN", 1.0, ours / theirs, "x")
    print(table(["us", "oneDNN", "joined", "ratio"], lines) + "\n", flush=True)


def _product(
    weights: Sequence[onednn_product.LibraryWeight], x: torch.Tensor, kernel: library.Run, blocks: int
) -> tuple[float, float] | None:
    """Seconds of a product with each of the weights by the library, and by oneDNN; None where the library does not
    take it."""
    made, prepared = list[tuple[Named, Steps]](), list[Callable[[], object]]()
    for weight in weights:
        out = torch.empty(len(x), weight.outs, dtype=x.dtype)
        given = (torch.ops.aten.mm.out, (x, torch.empty(weight.outs, x.shape[1], dtype=x.dtype).t()), {"out": out})
        one, call = products.linear_blocks(weight, *given, None), weight.call(*given)
        if one is None or call is None:
            return None
        made.append((Named(call, "here"), one))
        prepared.append(call)
    both = {"joined": Joined(made, kernel), "oneDNN": lambda: [call() for call in prepared]}
    found = medians(both, blocks)
    return found["joined"], found["oneDNN"]


def _measured(case: Case, blocks: int) -> tuple[float, float] | None:
    """Seconds of one call by the library, and by torch; None where the library does not take it."""
    op, args, kwargs, targets = case
    made = steps.steps(op, args, kwargs, targets)
    kernel = library.run()
    if made is None or kernel is None:
        return None

    def by_torch() -> None:
        result = op(*args, **kwargs)
        if targets is not None:
            targets[0].copy_(result)

    found = medians({"joined": Joined([(Named(by_torch, "here"), made)], kernel), "torch": by_torch}, blocks)
    return found["joined"], found["torch"]


# ---- replays ---------------------------------------------------------------------------------------------------------


def _replays(path: Path, blocks: int) -> Iterator[Row]:
    with aotair.load(path) as ours:
        with mock.patch.object(join, "run", lambda: None):
            plain = aotair.load(path)
        for name, call in _calls(ours).items():
            both = {"joined": functools.partial(call, ours), "torch": functools.partial(call, plain)}
            found = medians(both, blocks)
            text = f"{1e3 * found['joined']:.2f} beside {1e3 * found['torch']:.2f} ms"
            yield Row(f"{path.stem}, {name}: / without", 1.0, found["joined"] / found["torch"], "x", text)
        plain.close()


def _calls(model: aotair.Model) -> dict[str, Callable[[aotair.Model], object]]:
    if not hasattr(model, "decode"):
        given = [(torch.randint(1000, size), torch.ones(size, dtype=torch.int64)) for size in SHAPES]
        return {f"{size[0]} x {size[1]}": lambda of, args=args: of(*args) for size, args in zip(SHAPES, given)}
    steps_of = {batch: (torch.full((batch,), 7), torch.full((batch,), 64), torch.arange(batch)) for batch in (1, 8)}
    return {f"decode, batch {batch}": lambda of, args=args: of.decode(*args) for batch, args in steps_of.items()}


if __name__ == "__main__":
    main()
