"""SmolLM2-135M-Instruct beside llama.cpp at equal bits: tokens a second of decode steps, and of a prompt.

Steps are of one sequence and of eight, the prompt has 128 tokens. llama.cpp (PyPI's `xllamacpp`) computes with a GGUF
file's own weights: those of `make chat`'s, of 4 bits with a head of 8; and Q8_0 and BF16, which this writes of it. Ours
is the same model with `quantize`, or in bfloat16. Each runs in processes of its own, which take turns: beside torch's
threads llama.cpp has half its speed.
"""

import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .common import BUILD, Row, fresh_call, options, report
from .smollm2 import GGUF, POSITION, RECIPE

PROMPT, ANSWER, SEQUENCES = 128, 128, 8
_INT4 = {
    "linear": {"*lm_head": "int8_weight_only", "*": "int4_weight_only"},
    "group_size": 32,
    "calibration": "prompts",
}


@dataclass(frozen=True)
class Variant:
    """What a recipe says beyond SmolLM2's, the numbers of the file that llama.cpp reads, and the bounds of ours over
    it."""

    name: str
    file: str
    recipe: dict[str, Any]
    bounds: dict[str, float]

    @property
    def artifact(self) -> Path:
        return BUILD / f"smollm2_{self.name}.aotair"

    @property
    def gguf(self) -> Path:
        return GGUF if self.file == "Q4_1" else BUILD / f"SmolLM2-135M-Instruct.{self.file}.gguf"


VARIANTS = (
    Variant("int4", "Q4_1", {"quantize": _INT4}, {"one": 0.8, "eight": 1.0}),
    Variant("int8", "Q8_0", {"quantize": {"linear": {"*": "int8_weight_only"}}}, {"one": 0.9, "eight": 1.0}),
    Variant("bf16", "BF16", {"dtype": "bfloat16"}, {"prompt": 1.2}),
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=[one.name for one in VARIANTS], action="append")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes of each  [3]")
    given = parser.parse_args()
    chosen = [one for one in VARIANTS if one.name in (given.only or [one.name])]
    report([row for one in chosen for row in _measured(one, given.processes, given.rebuild)], given.json)


def _measured(variant: Variant, processes: int, rebuild: bool) -> Iterator[Row]:
    _prepare(variant, rebuild)
    found: dict[str, list[dict[str, float]]] = {"ours": [], "llama_cpp": []}
    for _ in range(processes):
        for node, values in found.items():
            values.append(fresh_call("benchmarks.llama_cpp", node, variant.name))
            text = ", ".join(f"{what} {value:.0f}" for what, value in values[-1].items())
            print(f"  {node} {variant.name}: {text} tokens/s", flush=True)
    for what, bound in variant.bounds.items():
        ours, theirs = (statistics.median(one[what] for one in values) for values in found.values())
        text = f"{ours:.0f} beside {theirs:.0f} tokens/s of {variant.file}"
        yield Row(f"{variant.name}, {_WHAT[what]}: / llama.cpp", bound, ours / theirs, "x", text, at_least=True)


_WHAT = {"one": "a step of one sequence", "eight": "a step of eight", "prompt": f"a prompt of {PROMPT} tokens"}


def _prepare(variant: Variant, rebuild: bool) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    if not variant.gguf.exists():
        _write(variant)
    if rebuild or not variant.artifact.exists():
        import yaml

        import aotair

        print(f"building {variant.artifact} …", flush=True)
        recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
        more = dict(variant.recipe)
        model = recipe["model"] | {"pretrained": str(GGUF.resolve())}
        model["dtype"] = more.pop("dtype", model["dtype"])
        aotair.build({**recipe, **more, "name": f"smollm2_{variant.name}", "model": model}, variant.artifact)


def _write(variant: Variant) -> None:
    """The same model with other numbers for its matrices."""
    import gguf

    reader, kind = gguf.GGUFReader(GGUF), gguf.GGMLQuantizationType[variant.file]
    writer = gguf.GGUFWriter(variant.gguf, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name != "general.architecture" and not field.name.startswith("GGUF."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        plain = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        own = kind if plain.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(plain, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- processes of their own ------------------------------------------------------------------------------------------


def ours(name: str) -> dict[str, float]:
    """Tokens a second."""
    import aotair

    (variant,) = (one for one in VARIANTS if one.name == name)
    model = aotair.load(variant.artifact, capture="lazy", enable_output_clone=True)
    prompt = torch.randint(1000, (1, PROMPT)), torch.ones(1, PROMPT, dtype=torch.int64), torch.arange(1)
    found = {"prompt": _rate(functools.partial(model.prefill, *prompt), PROMPT)}
    for what, count in (("one", 1), ("eight", SEQUENCES)):
        given = torch.arange(count), torch.full((count,), POSITION), torch.arange(count)
        found[what] = _rate(functools.partial(model.decode, *given), count)
    return found


def _rate(call: Callable[[], object], tokens: int) -> float:
    call()
    times = list[float]()
    for _ in range(40):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return tokens / statistics.median(times)


def llama_cpp(name: str) -> dict[str, float]:
    """The same, as it says itself of one sequence; of eight, the tokens of all by the time of all."""
    import xllamacpp

    (variant,) = (one for one in VARIANTS if one.name == name)
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(variant.gguf), 1024 * SEQUENCES, SEQUENCES
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
    server = xllamacpp.Server(params)

    def asked(prompt: list[int], tokens: int) -> dict[str, float]:
        said = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        timings: dict[str, float] = server.handle_completions(said)["timings"]
        return timings

    asked([7] * 8, 8)
    prompts = [asked([place + 100] * PROMPT, 1)["prompt_per_second"] for place in range(9)]
    alone = asked([7] * POSITION, ANSWER)["predicted_per_second"]
    ends = list[dict[str, float]]()
    threads = [
        threading.Thread(target=lambda at=at: ends.append(asked([at + 7] * 2, 2 * ANSWER))) for at in range(SEQUENCES)
    ]
    begin = time.perf_counter()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    together = sum(one["predicted_n"] for one in ends) / (time.perf_counter() - begin)
    return {"prompt": statistics.median(prompts), "one": alone, "eight": together}


if __name__ == "__main__":
    main()
