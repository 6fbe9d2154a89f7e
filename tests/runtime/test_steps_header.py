"""Steps as the runtime writes them and as the library reads them: the same numbers, of which memory depends."""

import hashlib
import json
import re

import pytest
import torch
from cases import ROOT

from aotair_runtime.devices import int8_rows, onednn_product
from aotair_runtime.steps import attention, elementwise, images, products, recurrent, rows, written

HEADER = (ROOT / "kernels" / "src" / "step.h").read_text()


def enumerated(name: str) -> dict[str, int]:
    """The names of an enumeration with their numbers."""
    body = re.sub(r"/\*.*?\*/", "", re.findall(rf"enum {name} \{{(.*?)\}};", HEADER, re.DOTALL)[0], flags=re.DOTALL)
    found, number = dict[str, int](), 0
    for item in filter(None, (one.strip() for one in body.split(","))):
        key, _, said = (part.strip() for part in item.partition("="))
        number = int(said) if said else number
        found[key] = number
        number += 1
    return found


def test_ops():
    mine = {key.upper(): number for key, number in (elementwise.OF_ONE | elementwise.OF_TWO | rows._REDUCED).items()}
    mine |= {f"GELU_{'ERF' if key == 'none' else 'TANH'}": number for key, number in elementwise._GELUS.items()}
    mine |= {"COPY": elementwise._COPY, "WHERE": elementwise._WHERE, "LINEAR_INT8": products._LINEAR_INT8}
    mine |= {"LINEAR_BLOCKS": products._LINEAR_BLOCKS, "LSTM": recurrent._LSTM, "GROUP_NORM": images._GROUP_NORM}
    mine |= {"INDEX_SELECT": rows._INDEX_SELECT, "INDEX_COPY": rows._INDEX_COPY, "SOFTMAX": rows._SOFTMAX}
    mine |= {"LAYER_NORM": rows._LAYER_NORM, "DYNAMIC_QUANT": rows._DYNAMIC_QUANT}
    mine |= {"ATTENTION": attention._ATTENTION, "PAGED_ATTENTION": attention._PAGED_ATTENTION}
    assert mine == enumerated("op")


def test_dtypes():
    names = {
        torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.bool: "BOOL", torch.int64: "I64",
        torch.int32: "I32", torch.int8: "I8",
    }  # fmt: skip
    assert {names[dtype]: number for dtype, number in written.TYPES.items()} == enumerated("type")


@pytest.mark.parametrize("name", ["DIMS", "ROW", "TOGETHER", "WIDTH", "MOST_ROWS", "MOST_WIDE"])
def test_limits(name: str):
    (said,) = re.findall(rf"^#define {name} (\d+)", HEADER, re.MULTILINE)
    assert int(said) == getattr(written, name)


def test_blocks_are_as_long_as_those_of_onednn():
    assert re.search(rf"^#define BLOCK {onednn_product.BLOCK} ", HEADER, re.MULTILINE)
    assert max(products._FEW.values()) <= written.MOST_ROWS


def test_rows_that_the_build_leaves_to_the_kernel_are_those_that_it_takes():
    assert int8_rows.MOST_ROWS <= written.MOST_ROWS


def test_the_layout_says_both_sizes():
    assert 3_000_000 + written.HEAD.size * 1000 + written.OPERAND.size == written.LAYOUT
    assert re.search(r"^#define LAYOUT 3$", HEADER, re.MULTILINE)


def test_the_layout_changes_with_what_steps_say():
    """A runtime and a library that do not mean the same by a step must not meet: who changes these numbers changes
    LAYOUT, and then this digest."""
    said = [sorted(enumerated(name).items()) for name in ("op", "type")]
    said += re.findall(r"struct (operand|step) \{(.*?)\};", HEADER, re.DOTALL)
    assert hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16] == "64b0dc89ef5cbd2f"
