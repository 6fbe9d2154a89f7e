"""A decoder of the shape of Llama-3-8B in bfloat16: can it be built and served where it fits once, not twice?

The checkpoint has random weights, 16 GB with all 32 layers, and is written shard by shard, of which one is held at a
time. It is built in a process of its own with `verify: {level: sampled}`, and loaded in another one that generates a
token. Memory is what no file backs; pages of mapped files can be let go and read again, and are counted beside it.
`--folder` needs twice the weights in free space, and keeps neither checkpoint nor artifact.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from .common import Row, options, report

MODULE = "benchmarks.large_decoder"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
KWARGS = {"slots": 1, "length": 256}
ENTRIES = {"prefill": {"buckets": {"batch": [1], "seq": [32]}}, "decode": {"buckets": {"batch": [1]}}}
SHARE, MORE = 1.3, 1e9  # of the weights, and bytes: what a build may hold


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, action="append", help="several times: one after the other  [32]")
    parser.add_argument("--folder", default=None, help="where checkpoint and artifact lie meanwhile")
    given = parser.parse_args()
    rows = [row for layers in given.layers or [32] for row in _one(layers, given.folder)]
    report(rows, given.json)


def _one(layers: int, folder: str | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        checkpoint, out = Path(place) / "checkpoint", Path(place) / "out.aotair"
        begin = time.perf_counter()
        size = _write(checkpoint, layers)
        print(f"{layers} layers: {size / 1e9:.2f} GB written in {time.perf_counter() - begin:.0f} s", flush=True)
        built = _watched("build", checkpoint, out)
        yield _row(f"{layers} layers: build, memory", size, built)
        print(f"  built in {built['seconds']:.0f} s: {built['stages']}", flush=True)
        shutil.rmtree(checkpoint)
        served = _watched("serve", out)
        yield _row(f"{layers} layers: load and first tokens, memory", size, served)
        times = [f"{what} {served[what]:.2f} s" for what in ("load", "first", "step")]
        print(f"  from disk: {', '.join(times)}", flush=True)


def _row(what: str, size: int, found: dict) -> Row:
    beside = f"weights {size / 1e9:.2f}, with mapped files {found['private'] / 1e9:.2f} GB"
    return Row(what, (SHARE * size + MORE) / 1e9, found["anonymous"] / 1e9, "GB", beside)


# ---- the checkpoint --------------------------------------------------------------------------------------------------


def _write(folder: Path, layers: int) -> int:
    """A checkpoint in shards of a layer each; returns the bytes of its weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    width, inner, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    groups = width // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
    layer = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (groups, width),
        "self_attn.v_proj": (groups, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    shards = [{f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()} for n in range(layers)]
    shards += [{"model.embed_tokens.weight": (vocab, width)}]
    shards += [{"model.norm.weight": (width,), "lm_head.weight": (vocab, width)}]
    generator, where, total = torch.Generator().manual_seed(0), {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {key: _random(shape, generator) for key, shape in shard.items()}
        save_file(tensors, folder / name, {"format": "pt"})
        where |= dict.fromkeys(shard, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
        del tensors
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Weights as an initialised model has them: norms of one, products that keep the size of their input."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    tensor = torch.empty(shape, dtype=torch.bfloat16)
    for rows in tensor.split(1024):
        rows.copy_(torch.randn(rows.shape, generator=generator) * shape[1] ** -0.5)
    return tensor


# ---- processes -------------------------------------------------------------------------------------------------------


def _watched(what: str, *arguments: object) -> dict:
    """What a process of this module printed last, with the most memory of its own that it was seen to hold."""
    command = [sys.executable, "-m", f"{MODULE}_node", what, *map(str, arguments)]
    anonymous = private = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        ended = threading.Event()

        def watch() -> None:
            nonlocal anonymous, private
            while not ended.wait(0.2):
                own, mapped = _memory_of(process.pid)
                anonymous, private = max(anonymous, own), max(private, own + mapped)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            printed = process.stdout.read() if process.stdout else ""
        finally:
            ended.set()
            watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {**json.loads(printed.splitlines()[-1]), "anonymous": anonymous, "private": private}


def _memory_of(process: int) -> tuple[int, int]:
    """Bytes of a process that no file backs, and those of files that it alone has mapped."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0, 0
    sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in text.splitlines()[1:]}
    return sizes["Anonymous"], sizes["Private_Clean"] + sizes["Private_Dirty"] - sizes["Anonymous"]


if __name__ == "__main__":
    main()
