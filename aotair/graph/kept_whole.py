"""Composite ops that stay whole in a graph: backends have kernels for them, or fusion looks for them."""

# Composite ops that backends have kernels for, or that fusion looks for: they stay whole.
KEPT_WHOLE = frozenset(
    {
        "linear",
        "scaled_dot_product_attention",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "gelu",
        "silu",
        "silu_",
        "embedding",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
    }
)
