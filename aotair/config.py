"""CompilerConfig: options under TorchAir's names, at TorchAir's dotted places, with TorchAir's defaults.

Only options that have an effect are here; any other name is refused where it is set.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

_FUNCTION = re.compile(r"[^:]+:[A-Za-z_][A-Za-z0-9_.]*")


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, strict=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in type(self).model_fields:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"unknown option {name!r}; {type(self).__name__} has {known}")
        super().__setattr__(name, value)


class GraphDump(_Options):
    """`path`: a directory that receives the graph after each stage as text; nothing is dumped where it is None."""

    path: str | None = None


class AclGraphDebug(_Options):
    clone_input: bool = Field(True, description="copy user inputs into memory that all buckets share")
    enable_output_clone: bool = Field(False, description="hand out outputs as fresh tensors")
    disable_mempool_reuse_in_same_fx: bool = Field(False, description="give each bucket memory of its own")
    remove_cat_ops: bool = Field(True, description="let producers write straight into the slices of a cat's result")
    disable_reinplace_inplaceable_ops_pass: bool = Field(
        False, description="leave intermediate ops out-of-place that could write into their first argument"
    )
    disable_reinplace_input_mutated_ops_pass: bool = Field(
        False, description="compute the new values of mutated inputs and states apart, and copy them there at the end"
    )


class Debug(_Options):
    graph_dump: GraphDump = Field(default_factory=GraphDump)
    aclgraph: AclGraphDebug = Field(default_factory=AclGraphDebug)


class ExperimentalConfig(_Options):
    composites: Literal["auto", "apart", "whole"] = Field(
        "auto",
        description="how passes and rules of your own see linear, layer_norm, rms_norm and group_norm: apart, as the "
        "calls that TorchAir shows (t, mm, addmm, native_layer_norm); whole; auto: apart, and whole to those that name "
        "composites and find nothing",
    )
    stream_hazards: Literal["repair", "refuse", "allow"] = Field(
        "repair", description="what to do with a use across streams that no event orders"
    )
    remove_noop_ops: bool = Field(True, description="remove ops that return their input unchanged")
    merge_duplicates: bool = Field(True, description="compute once what is computed several times")
    pattern_fusion_pass: bool = Field(True, description="apply fusion rules, aotair's own and registered ones")
    disabled_fusion_rules: list[str] = Field(default_factory=list, description="names of fusion rules to leave out")
    plan_effort: float = Field(
        1.0, gt=0, description="work of the searches for lower memory plans, counted: 1 is a second or so for a bucket"
    )
    verify_rules: bool = Field(True, description="check each fusion rule on random numbers before it is trusted")


def _a_pass(value: object) -> object:
    if value is None or callable(value) or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        return value
    raise ValueError(f"expected module:function, path/to/file.py:function or a callable, not {value!r}")


# A function f(gm, example_inputs, config) -> None, or where to import it from.
CustomPass = Annotated[Any, AfterValidator(_a_pass), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})]


class CompilerConfig(_Options):
    debug: Debug = Field(default_factory=Debug)
    experimental_config: ExperimentalConfig = Field(default_factory=ExperimentalConfig)
    post_grad_custom_pre_pass: CustomPass = Field(None, description="a pass of your own, before all others")
    post_grad_custom_post_pass: CustomPass = Field(
        None, description="a pass of your own, after fusion and before streams and reinplacing"
    )
