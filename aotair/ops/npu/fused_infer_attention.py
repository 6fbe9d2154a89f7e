"""The ops of attention for inference: torch_npu's names and arguments for what `attention` computes.

Source: the documentation of torch_npu's `npu_fused_infer_attention_score` and `npu_fused_infer_attention_score_v2`
(aclnnFusedInferAttentionScore, V2 to V5).
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..registry import HostOp, Kernel, refuse
from .attention import ALL, Call, check, outputs, run

_NAME = "npu_fused_infer_attention_score"


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = ALL,
    next_tokens: int = ALL,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    **unserved: object,
) -> Call:
    refuse(_NAME, unserved)
    return Call(
        query,
        key,
        value,
        input_layout,
        num_heads,
        num_key_value_heads or num_heads,
        scale,
        atten_mask,
        sparse_mode,
        (pre_tokens, next_tokens),
        actual_seq_lengths,
        actual_seq_lengths_kv,
        block_table,
        block_size,
        inner_precise,
        query_rope,
        key_rope,
        softmax_lse_flag,
    )


def _call_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = ALL,
    next_tokens: int = ALL,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    **unserved: object,
) -> Call:
    refuse(_NAME + "_v2", unserved)
    return Call(
        query,
        key,
        value,
        input_layout,
        num_query_heads,
        num_key_value_heads or num_query_heads,
        softmax_scale,
        atten_mask,
        sparse_mode,
        (pre_tokens, next_tokens),
        actual_seq_qlen,
        actual_seq_kvlen,
        block_table,
        block_size,
        inner_precise,
        query_rope,
        key_rope,
        return_softmax_lse,
    )


def fused_infer_attention_score(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`softmax(scale * query @ key^T, hidden keys left out) @ value`, and the log-sum-exp of the scores.

    `input_layout` says how query, key and value lie; each key head serves num_heads / num_key_value_heads query heads
    in turn. Float16, bfloat16 or float32, all alike; the arithmetic is that of torch's
    `scaled_dot_product_attention`, for whole sequences with the same bits.

    What a query may not see: with sparse_mode 0 and 1 what atten_mask (bool, int8 or uint8) marks; with 2 the keys
    after its own number, counted from the first ones; with 3 counted from the last ones. The last two take the
    2048 x 2048 upper triangle as atten_mask, whose contents are not looked at. A query that sees nothing gives zeros
    and an infinite log-sum-exp.

    actual_seq_lengths and actual_seq_lengths_kv: how many queries and keys each sequence has (one number for all, or
    one each); in the layouts with T the number up to its end, counted from the first sequence. Queries beyond give
    zeros. With block_table (batch, blocks of a sequence), int32, key and value are caches, (blocks, block_size, heads *
    size) or (blocks, heads, block_size, size), and the lengths of the keys are never cumulative. query_rope and
    key_rope lie like query and key and are more of their size.

    What changes nothing: inner_precise (a query that sees nothing gives zeros in all four of its modes), block_size
    without a block_table, sparse_mode for a single query, pre_tokens and next_tokens without an atten_mask of
    sparse_mode 0.
    """
    return run(_call(*args, **kwargs))


def fused_infer_attention_score_v2(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`fused_infer_attention_score` with other names: num_query_heads, softmax_scale, return_softmax_lse,
    actual_seq_qlen and actual_seq_kvlen."""
    return run(_call_v2(*args, **kwargs))


def _into(kernel: Callable[..., tuple[Tensor, Tensor]]) -> Kernel:
    """The overload that writes its results into `out`; the host needs no workspace."""

    def run(*args: Any, workspace: Tensor | None = None, out: Sequence[Tensor], **kwargs: Any) -> tuple[Tensor, ...]:
        for target, result in zip(out, kernel(*args, **kwargs), strict=True):
            if target.shape != result.shape or target.dtype != result.dtype:
                raise ValueError(f"out: {target.dtype} {tuple(target.shape)} for {result.dtype} {tuple(result.shape)}")
            target.copy_(result)
        return tuple(out)

    return run


def max_workspace(query: Tensor, *args: object, **kwargs: object) -> Tensor:
    """What the overload `out` takes as workspace at most, for any lengths: on the host one element that nobody uses."""
    return query.new_zeros(1)


def infer_output(
    query: Tensor,
    value: Tensor,
    *,
    input_layout: str = "BSH",
    quant_scale2: Tensor | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_lse_flag: bool = False,
    query_rope: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Tensors of the shapes and dtypes of the results, for the overload `out`; here they are zeros."""
    return outputs(
        _call(
            query,
            value,
            value,
            input_layout=input_layout,
            quant_scale2=quant_scale2,
            block_table=block_table,
            num_heads=num_heads,
            num_key_value_heads=num_key_value_heads,
            softmax_lse_flag=softmax_lse_flag,
        )
    )


def infer_output_v2(
    query: Tensor,
    value: Tensor,
    *,
    query_dtype: int | None = None,
    value_dtype: int | None = None,
    input_layout: str = "BSH",
    quant_scale_out: Tensor | None = None,
    block_table: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    return_softmax_lse: bool = False,
    query_rope: Tensor | None = None,
    out_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`infer_output` for the second version."""
    return outputs(
        _call_v2(
            query,
            value,
            value,
            query_dtype=query_dtype,
            value_dtype=value_dtype,
            input_layout=input_layout,
            quant_scale_out=quant_scale_out,
            block_table=block_table,
            num_query_heads=num_query_heads,
            num_key_value_heads=num_key_value_heads,
            return_softmax_lse=return_softmax_lse,
            out_dtype=out_dtype,
        )
    )


def _shape(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return _checked(_call(*args, **kwargs))


def _shape_v2(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return _checked(_call_v2(*args, **kwargs))


def _checked(call: Call) -> tuple[Tensor, Tensor]:
    check(call)
    return outputs(call)


_SCHEMA = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None, "
    "SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? key_antiquant_scale=None, "
    "Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, SymInt[]? actual_shared_prefix_len=None, "
    "Tensor? query_rope=None, Tensor? key_rope=None, Tensor? key_rope_antiquant_scale=None, int num_heads=1, "
    "float scale=1., int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout='BSH', "
    "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, int antiquant_mode=0, "
    "int key_antiquant_mode=0, int value_antiquant_mode=0, bool softmax_lse_flag=False"
)
_SCHEMA_V2 = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_qlen=None, "
    "SymInt[]? actual_seq_kvlen=None, Tensor? block_table=None, Tensor? dequant_scale_query=None, "
    "Tensor? dequant_scale_key=None, Tensor? dequant_offset_key=None, Tensor? dequant_scale_value=None, "
    "Tensor? dequant_offset_value=None, Tensor? dequant_scale_key_rope=None, Tensor? quant_scale_out=None, "
    "Tensor? quant_offset_out=None, Tensor? quant_scale_p=None, Tensor? learnable_sink=None, int num_query_heads=1, "
    "int num_key_value_heads=0, float softmax_scale=1., int pre_tokens=2147483647, int next_tokens=2147483647, "
    "str input_layout='BSH', int sparse_mode=0, int block_size=0, int query_quant_mode=0, int key_quant_mode=0, "
    "int value_quant_mode=0, int inner_precise=0, bool return_softmax_lse=False, int? query_dtype=None, "
    "int? key_dtype=None, int? value_dtype=None, int? query_rope_dtype=None, int? key_rope_dtype=None, "
    "int? key_shared_prefix_dtype=None, int? value_shared_prefix_dtype=None, int? dequant_scale_query_dtype=None, "
    "int? dequant_scale_key_dtype=None, int? dequant_scale_value_dtype=None, "
    "int? dequant_scale_key_rope_dtype=None, int? out_dtype=None"
)
_OUT = "Tensor? workspace=None, Tensor[] out"

OPS = (
    HostOp(f"{_NAME}({_SCHEMA}) -> (Tensor, Tensor)", fused_infer_attention_score, _shape),
    HostOp(f"{_NAME}.out({_SCHEMA}, {_OUT}) -> (Tensor, Tensor)", _into(fused_infer_attention_score), _into(_shape)),
    HostOp(f"_{_NAME}_get_max_workspace({_SCHEMA}) -> Tensor", max_workspace),
    HostOp(
        f"_{_NAME}_infer_output(Tensor query, Tensor value, *, str input_layout='BSH', Tensor? quant_scale2=None, "
        "Tensor? block_table=None, int num_heads=1, int num_key_value_heads=0, bool softmax_lse_flag=False, "
        "Tensor? query_rope=None) -> (Tensor, Tensor)",
        infer_output,
    ),
    HostOp(f"{_NAME}_v2({_SCHEMA_V2}) -> (Tensor, Tensor)", fused_infer_attention_score_v2, _shape_v2),
    HostOp(
        f"{_NAME}_v2.out({_SCHEMA_V2}, {_OUT}) -> (Tensor, Tensor)",
        _into(fused_infer_attention_score_v2),
        _into(_shape_v2),
    ),
    HostOp(f"_{_NAME}_v2_get_max_workspace({_SCHEMA_V2}) -> Tensor", max_workspace),
    HostOp(
        f"_{_NAME}_v2_infer_output(Tensor query, Tensor value, *, int? query_dtype=None, int? value_dtype=None, "
        "str input_layout='BSH', Tensor? quant_scale_out=None, Tensor? block_table=None, int num_query_heads=1, "
        "int num_key_value_heads=0, bool return_softmax_lse=False, Tensor? query_rope=None, int? out_dtype=None) "
        "-> (Tensor, Tensor)",
        infer_output_v2,
    ),
)
