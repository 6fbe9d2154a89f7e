"""Does every argument of the host kernels count? Each is changed alone: the result changes, or the call is refused."""

from collections.abc import Iterable

import pytest
import torch
from npu_samples import op
from npu_variations import Variation, variations
from torch.utils._pytree import tree_leaves, tree_map

import aotair
import aotair.ops.npu
from aotair.errors import UnsupportedError
from aotair_runtime.errors import AotairError

_ATTENTION = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")
# By (op, argument): why no value of it changes what comes out.
CHANGE_NOTHING = {
    ("npu_dynamic_quant", "dst_type"): "1 is int8, which is the default",
    ("npu_add_rms_norm_quant", "dst_type"): "1 is int8, which is the default",
    ("npu_add_rms_norm_dynamic_quant", "y_dtype"): "1 is int8, which is the default",
    ("npu_transpose_batchmatmul", "perm_y"): "the device has one permutation of the result, the default",
    ("scatter_update", "axis"): "-2 and 2 are one axis of four; the shape of updates leaves no other",
    ("scatter_update_", "axis"): "-2 and 2 are one axis of four; the shape of updates leaves no other",
    ("npu_grouped_matmul", "tuning_config"): "documented as a hint for speed",
    ("npu_grouped_matmul", "group_type"): "-1 and 0 are one without a group_list, and -1 is refused with one",
    ("npu_grouped_matmul.List", "group_type"): "a list of numbers means 0",
    ("npu_grouped_matmul.List", "group_list_type"): "counts with a group_list alone, and 1 is refused with one",
    ("npu_moe_init_routing_v2", "active_num"): "-1, 0 and all rows mean all rows; fewer are refused",
    ("npu_moe_init_routing_v2", "expert_capacity"): "documented as unused where no row is left out",
    ("npu_mla_prolog_v3", "tile_size"): "documented to count with kv_cache_quant_mode=3 alone, which is refused",
    ("npu_mla_prolog_v3_functional", "tile_size"): "documented to count with kv_cache_quant_mode=3 alone, refused",
    **{
        (name, argument): reason
        for name in (*_ATTENTION, *(f"{name}.out" for name in _ATTENTION))
        for argument, reason in {
            "inner_precise": "speed, and rows that see nothing: the host gives zeros in every mode",
            "block_size": "documented to count with a block_table alone, whose blocks it has to fit",
            "pre_tokens": "documented to count with an atten_mask of sparse_mode 0: refused where it hides something",
            "next_tokens": "documented to count with an atten_mask of sparse_mode 0: refused where it hides something",
        }.items()
    },
}


def outcome(name: str, arguments: dict) -> list[torch.Tensor]:
    """What a call returns and what it writes into."""
    own = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, arguments)
    written = [own[a.name] for a in op(name)._schema.arguments if a.alias_info and a.name in own]
    return tree_leaves((op(name)(**own), written))


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one, other)
    )


def findings(tried: Iterable[Variation]) -> tuple[dict[tuple, str], list[str]]:
    """Arguments that never change anything, with an example, and refusals that do not say what they refuse."""
    unchanged, changed, unnamed = {}, set(), []
    for variation in tried:
        key, kind = (variation.name, variation.argument), ("type" in variation.argument or "mode" in variation.argument)
        try:
            got = outcome(variation.name, variation.after())
        except (AotairError, ValueError) as error:
            if kind and isinstance(error, AotairError) and variation.argument not in str(error):
                unnamed.append(f"{variation}: {error}")
            continue
        except (RuntimeError, IndexError, TypeError) as error:
            # A mode may ask for other shapes, and torch's own cast refuses some dtypes.
            if "type" in variation.argument and variation.name != "_npu_dtype_cast":
                unnamed.append(f"{variation}: {error}")
            continue  # else a shape that does not fit
        if same(got, outcome(variation.name, variation.before)):
            unchanged.setdefault(key, str(variation))
        else:
            changed.add(key)
    return {key: example for key, example in unchanged.items() if key not in changed}, unnamed


def test_every_argument_changes_the_result_or_is_refused_by_name():
    # Some ops make a workspace that the host does not use, and zeros of a shape: they have no numbers.
    without = ("_get_max_workspace", "_infer_output")
    silent, unnamed = findings(one for one in variations() if not one.name.endswith(without))
    assert {key: text for key, text in silent.items() if key not in CHANGE_NOTHING} == {}
    assert set(CHANGE_NOTHING) <= set(silent), "each entry of the list is needed"
    assert not unnamed


def test_a_kernel_that_does_not_read_an_argument_is_found():
    library = torch.library.Library("npu", "FRAGMENT")
    library.define("planted(Tensor x, *, int? dst_type=None, int mode=0) -> Tensor")
    library.impl("planted", lambda x, *, dst_type=None, mode=0: x[[]] if mode else x.to(torch.int8), "CPU")
    x = {"x": torch.ones(2)}
    tried = [Variation("planted", "dst_type", 24, x), Variation("planted", "mode", 1, x)]
    assert set(findings(tried)[0]) == {("planted", "dst_type")}


class Quantising(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return torch.ops.npu.npu_dynamic_quant(x, **self.options)[1]


class Fused(torch.nn.Module):
    def forward(self, x):
        return torch.ops.npu.npu_add_rms_norm_dynamic_quant(x, x, x[0], y_dtype=16)[3]


def quantising(**options) -> torch.nn.Module:
    return Quantising(**options)


def fused() -> torch.nn.Module:
    return Fused()


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize(
    "factory,kwargs,said",
    [
        ("quantising", {"dst_type": 24}, "dst_type=24"),
        ("quantising", {"quant_mode": "pertensor"}, "quant_mode='pertensor'"),
        ("quantising", {"dst_type_max": 8.0}, "dst_type_max=8.0"),
        ("fused", {}, "y_dtype=16"),
    ],
)
def test_a_build_refuses_them_with_the_models_line(device, factory, kwargs, said, tmp_path):
    recipe = {
        "name": "refused",
        "model": {"factory": f"{__file__}:{factory}", "kwargs": kwargs},
        "target": {"device": device},
        "inputs": {"x": {"shape": ["batch", 8], "dtype": "float16"}},
        "buckets": {"batch": [2, 4]},
    }
    with pytest.raises(UnsupportedError) as refused:
        aotair.build(recipe, tmp_path / "refused.aotair")
    assert said in str(refused.value) and "test_npu_arguments.py:" in str(refused.value)
