"""The recipes that the tests build, one for each small model."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
MODELS = str(Path(__file__).parent / "models.py")
TORCH_SHARES = str(Path(__file__).parent / "torch_shares.py")


def recipe(model: str, inputs: dict, buckets: dict | list | None = None, **parts: object) -> dict:
    """A recipe for one of tests/models.py, or of another `file`; `kwargs` go to the model, which is cast to `dtype`;
    `shares`: its equal weights."""
    file = parts.pop("file", MODELS)
    kwargs, dtype, shares = parts.pop("kwargs", {}), parts.pop("dtype", None), parts.pop("shares", False)
    return {
        "name": model.lower(),
        "model": {"factory": f"{file}:{model}", "kwargs": kwargs, "dtype": dtype, "share_equal_weights": shares},
        "inputs": inputs,
        "buckets": buckets or {},
        **parts,
    }


IDS = {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 50], "pad": "any"}
MASK = {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 2], "pad": 0}
ROWS = {"shape": ["n", 4], "dtype": "float32", "pad": "any"}

LENGTHS = {"shape": ["n"], "dtype": "int64", "range": [1, 7], "host": True, "pad": 1}

# What ranks share out of RECIPES["decode"], whose calls have lists of the host.
SHARED_DECODE = {"mesh": {"tp": 2}, "parallel": {"layers.*": "gathered"}}

# Not one of RECIPES: it is built where no process group is.
SHARES_ITSELF = recipe(
    "SharesItself",
    {"x": {"shape": ["n", 16], "dtype": "float32"}},
    {"n": [2, 6]},
    mesh={"tp": 2},
    parallel="model",
)

# With products that kernels of NPUs make while ranks meet.
MEETS_IN_PRODUCTS = recipe(
    "MeetsInProducts",
    {"x": {"shape": ["n", 256], "dtype": "float16"}},
    {"n": [2, 130]},
    mesh={"tp": 2},
    parallel="model",
    target={"device": "npu"},
    verify={"atol": 5e-3, "rtol": 5e-3},
)

WORDS = {"ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 48], "pad": "any"}}
SHARED_BY_TORCH = recipe(
    "shared_by_torch",
    WORDS,
    {"batch": [1, 3], "seq": [4, 8]},
    mesh={"tp": 2},
    parallel="model",
    file=TORCH_SHARES,
)

RECIPES = {
    "encoder": recipe("Encoder", {"ids": IDS, "mask": MASK}, {"batch": [1, 4], "seq": [4, 8, 16]}),
    "linear": recipe("Linear", {"x": ROWS}, {"n": [1, 4, 16]}),
    "tied": recipe("Tied", {"x": ROWS}, {"n": [4]}, shares=True),
    "derived": recipe("Derived", {"x": ROWS | {"pad": 0}}, {"n": [1, 4]}),
    "counter": recipe("Counter", {"x": ROWS}, {"n": [2, 4]}),
    "swap": recipe("Swap", {"x": {"shape": [2], "dtype": "float32"}}),
    "cache": recipe(
        "Cache",
        {
            "x": {"shape": ["n", 1, 3], "dtype": "float32"},
            "cache": {"shape": ["n", 8, 3], "dtype": "float32", "mutated": True},
            "position": {"shape": [1], "dtype": "int64", "range": [0, 8]},
        },
        {"n": [1, 2]},
    ),
    "structured": recipe("Structured", {"x": {"shape": ["n", 2, 3], "dtype": "float32", "pad": "any"}}, {"n": [2, 4]}),
    "views": recipe("Views", {"x": {"shape": [3, 4], "dtype": "float32"}}),
    "streams": recipe(
        "Streams",
        {"x": {"shape": ["n", "n"], "dtype": "float32"}},
        {"n": [4, 8]},
        config={"post_grad_custom_pre_pass": f"{MODELS}:two_streams"},
    ),
    "shared": recipe(
        "Shared",
        {"ids": IDS | {"range": [0, 24]}},
        {"batch": [1, 3], "seq": [4]},
        mesh={"tp": 2},
        parallel={
            "embed": "vocabulary",
            "up": "colwise",
            "down": "rowwise",
            "of_all": "rowwise_of_all",
            "head": "gathered",
        },
    ),
    "deep": recipe(
        "Deep",
        {"ids": IDS | {"range": [0, 24]}},
        {"batch": [1, 3], "seq": [4]},
        mesh={"pp": 2},
        parallel={"layers": "stages", "embed": "vocabulary@pp", "head": "gathered@pp"},
    ),
    "branches": recipe(
        "Branches",
        {
            "x": {"shape": [6, 6], "dtype": "float32"},
            "cache": {"shape": [6, 6], "dtype": "float32", "mutated": True},
        },
        config={"post_grad_custom_pre_pass": f"{MODELS}:a_stream_for_each_branch"},
    ),
    "npu_block": recipe(
        "NpuBlock",
        {
            "x": {"shape": ["n", 16], "dtype": "float32"},
            "residual": {"shape": ["n", 16], "dtype": "float32"},
            "cache": {"shape": [8, 16], "dtype": "float32", "mutated": True},
            "at": {"shape": ["n", 1], "dtype": "int64", "range": [0, 8]},
        },
        {"n": [2, 4]},
        verify={"seed": 3},
    ),
    "decoder_layer": recipe(
        "DecoderLayer",
        {
            "x": {"shape": ["n", 1, 32], "dtype": "float16"},
            "residual": {"shape": ["n", 1, 32], "dtype": "float16"},
            "position": {"shape": [1], "dtype": "int64", "range": [0, 8]},
        },
        {"n": [1, 2, 4]},
        dtype="float16",
        verify={"atol": 2e-2, "rtol": 2e-2},
    ),
    "halves": recipe(
        "Halves", {"x": {"shape": ["n", 2, "s"], "dtype": "float32", "pad": "any"}}, {"n": [2], "s": [9, 17]}
    ),
    "decode": recipe(
        "Decode",
        {
            "x": {"shape": ["n", 1, 16], "dtype": "float32", "pad": "any"},
            "keys": {"shape": ["n", 6, 16], "dtype": "float32", "pad": 0},
            "lengths": LENGTHS,
            "others": LENGTHS,
        },
        {"n": [1, 2, 4]},
    ),
    "ascend_decode": yaml.safe_load((ROOT / "recipes" / "ascend_decode.yaml").read_text()),
}

# Two entry points over one state.
NOTEBOOK = {
    "name": "notebook",
    "model": {"factory": f"{MODELS}:Notebook"},
    "entry_points": {
        "write": {
            "method": "write",
            "inputs": {"x": ROWS, "rows": {"shape": ["n"], "dtype": "int64", "range": [0, 8], "distinct": True}},
            "buckets": {"n": [1, 4]},
        },
        "read": {
            "method": "read",
            "inputs": {"query": {"shape": ["m", 4], "dtype": "float32", "pad": 0}},
            "buckets": {"m": [2, 8]},
        },
    },
}


def notes(writers: int = 4, spare: bool = True, **kwargs: object) -> dict:
    """A model whose states hold something for each of some writers, and where calls are padded for one more."""
    padded = {"pad": writers} if spare else {}
    return recipe(
        "Notes",
        {
            "x": {"shape": ["n", 4], "dtype": "float32", "pad": 0},
            "at": {"shape": ["n"], "dtype": "int64", "range": [0, 4], "pad": 0},
            "slots": {"shape": ["n"], "dtype": "int64", "range": [0, writers], "distinct": True} | padded,
        },
        {"n": [1, 4]},
        kwargs={"writers": writers, **kwargs},
    )
