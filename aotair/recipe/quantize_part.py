"""What a recipe may ask of quantised layers: its part `quantize`."""

from typing import Literal

from pydantic import Field, model_validator

from .part import Part, Size


class QuantizePart(Part):
    """Linear layers and experts to compute with whole numbers, and caches to keep in them."""

    linear: Literal["int8_dynamic", "int8_static", "int8_weight_only", "int4_weight_only"] | None = Field(
        default=None,
        description="int8_dynamic: int8 weights, a scale for each channel; int8 activations, a scale for each token. "
        "int8_static: the same, but one scale for all activations of a layer, from its calibration. int8_weight_only, "
        "int4_weight_only: weights alone; null: linear layers stay",
    )
    experts: Literal["int8_dynamic", "int8_weight_only"] | None = Field(
        default=None,
        description="the same of mixtures of experts whose matrices lie in one tensor, a scale for each channel of "
        "each; null: they stay",
    )
    kv_cache: Literal["int8"] | None = Field(
        default=None,
        description="int8: the keys and values of the task text-generation lie in int8, a scale for each head of a "
        "token; null: in the model's dtype",
    )
    skip: list[str] = Field(
        default_factory=lambda: ["*lm_head"], description="names of modules to leave, with * and ?; lm_head by default"
    )
    group_size: Size | None = Field(
        default=None,
        description="how many neighbours of a weight's row share a scale, with weight_only; null: 128 of int4, the row "
        "of int8",
    )
    calibration: str | None = Field(
        default=None,
        description=".safetensors file of real inputs, as verify.samples, or a function (module:function) that gives "
        "dicts of them, or prompts: those of verify.prompts, for the first entry point; scales of int8_static and "
        "reported errors follow from these; null: random inputs",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "QuantizePart":
        if self.linear is None and self.experts is None and self.kv_cache is None:
            raise ValueError("say what to quantise: linear, experts or kv_cache, as {linear: int8_dynamic}")
        others = "kv_cache" if self.experts is None else "experts"
        if self.group_size is not None and not self.weight_only:
            raise ValueError(
                f"group_size is for int8_weight_only and int4_weight_only of linear, not {self.linear or others}"
            )
        return self

    @property
    def weight_only(self) -> bool:
        """Whether linear layers keep their activations."""
        return self.linear is not None and self.linear.endswith("weight_only")

    @property
    def rounds_activations(self) -> bool:
        """Whether activations of any layer, or keys and values, become whole numbers."""
        if self.kv_cache is not None:
            return True
        return any(scheme is not None and not scheme.endswith("weight_only") for scheme in (self.linear, self.experts))

    @property
    def bits(self) -> int:
        """Of a linear layer's weight."""
        return 4 if self.linear is not None and self.linear.startswith("int4") else 8

    @property
    def group(self) -> int | None:
        """How many neighbours of a weight's row share a scale; None: all."""
        return 128 if self.group_size is None and self.bits == 4 else self.group_size
