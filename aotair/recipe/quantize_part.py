"""What a recipe may ask of quantised layers: its part `quantize`."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field, model_validator

from .part import FileName, Part, Size

Scheme = Literal["int8_dynamic", "int8_static", "int8_weight_only", "int4_weight_only"]
_NO_FLOAT8 = (
    "for {} no scheme of float8 ({}): Atlas A2 and A3 have none, torch's product takes longer on CPUs than bfloat16's, "
    "and none is called on GPUs yet; take a scheme of int8, or name a checkpoint that is in float8 (model.weights)"
)


class QuantizePart(Part):
    """Linear layers and experts to compute with whole numbers, and caches to keep in them."""

    linear: Scheme | dict[str, Scheme] | None = Field(
        default=None,
        description="int8_dynamic: int8 weights, a scale for each channel; int8 activations, a scale for each token. "
        "int8_static: the same, but one scale for all activations of a layer, from its calibration. int8_weight_only, "
        "int4_weight_only: weights alone; a mapping says it by layer, for names with * and ?, and the first that fits "
        "a layer counts; null: linear layers stay",
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
    skip: list[str] | None = Field(
        default=None,
        description="names of modules to leave, with * and ?; null: *lm_head, and none where linear says it by layer",
    )
    group_size: Size | None = Field(
        default=None,
        description="how many neighbours of a weight's row share a scale, with weight_only, of int4 alone where "
        "both are asked; null: 128 of int4, the row of int8",
    )
    calibration: FileName | None = Field(
        default=None,
        description=".safetensors file of real inputs, as verify.samples, or a function (module:function) that gives "
        "dicts of them, or prompts: those of verify.prompts, for the first entry point; scales of int8_static and "
        "reported errors follow from these; null: random inputs",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_float8(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        for name in ("linear", "experts", "kv_cache"):
            value = given.get(name)
            for one in value.values() if isinstance(value, dict) else (value,):
                if isinstance(one, str) and one.lower().startswith(("fp8", "float8")):
                    raise ValueError(_NO_FLOAT8.format(name, one))
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "QuantizePart":
        if not self.linear and self.experts is None and self.kv_cache is None:
            raise ValueError("say what to quantise: linear, experts or kv_cache, as {linear: int8_dynamic}")
        others = "kv_cache" if self.experts is None else "experts"
        if self.group_size is not None and not self.any_weight_only:
            said = ", ".join(self.linear_schemes) or others
            raise ValueError(f"group_size is for int8_weight_only and int4_weight_only of linear, not {said}")
        return self

    def skips(self, names: Sequence[str]) -> bool:
        """Whether a module that has these names is left."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.skipped)

    @property
    def skipped(self) -> list[str]:
        """The patterns of `skip`, or those that stand for none."""
        if self.skip is None:
            return [] if isinstance(self.linear, dict) else ["*lm_head"]
        return self.skip

    @property
    def linear_schemes(self) -> tuple[Scheme, ...]:
        """Those that are asked of linear layers, each once."""
        if isinstance(self.linear, dict):
            return tuple(dict.fromkeys(self.linear.values()))
        return () if self.linear is None else (self.linear,)

    def scheme_of(self, names: Sequence[str]) -> Scheme | None:
        """What `linear` asks of a layer that has these names; None: it stays."""
        if not isinstance(self.linear, dict):
            return self.linear
        pattern = self.pattern_of(names)
        return None if pattern is None else self.linear[pattern]

    def pattern_of(self, names: Sequence[str]) -> str | None:
        """The pattern of `linear` that counts for a layer that has these names."""
        patterns = self.linear if isinstance(self.linear, dict) else ()
        return next((one for one in patterns if any(fnmatchcase(name, one) for name in names)), None)

    @property
    def any_weight_only(self) -> bool:
        """Whether any linear layers keep their activations."""
        return any(map(is_weight_only, self.linear_schemes))

    @property
    def rounds_activations(self) -> bool:
        """Whether activations of any layer, or keys and values, become whole numbers."""
        if self.kv_cache is not None:
            return True
        schemes = [*self.linear_schemes, *(() if self.experts is None else (self.experts,))]
        return not all(map(is_weight_only, schemes))

    def group(self, scheme: Scheme) -> int | None:
        """How many neighbours of a weight's row share a scale; None: all, as of int8 beside groups of int4."""
        if bits(scheme) == 4:
            return 128 if self.group_size is None else self.group_size
        beside_int4 = any(bits(one) == 4 for one in self.linear_schemes)
        return self.group_size if is_weight_only(scheme) and not beside_int4 else None


def is_weight_only(scheme: str) -> bool:
    return scheme.endswith("weight_only")


def bits(scheme: str) -> int:
    """Of a weight."""
    return 4 if scheme.startswith("int4") else 8
