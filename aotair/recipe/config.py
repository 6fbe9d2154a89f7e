"""CompilerConfig: options under TorchAir's names, at TorchAir's dotted places, with TorchAir's defaults.

Only options that have an effect are here; any other name is refused where it is set, with what does its work here.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

_FUNCTION = re.compile(r"[^:]+:[A-Za-z_][A-Za-z0-9_.]*")
_GE = "it is for GE's graphs (mode max-autotune), which aotair does not make: leave it out"
_TRAINING = "it is for training: leave it out"
# Names that TorchAir has and these classes have not: by class, what to do instead.
_ELSEWHERE = {
    "CompilerConfig": {
        "ge_config": _GE,
        "aoe_config": _GE,
        "fusion_config": f"{_GE}, or name rules in experimental_config.disabled_fusion_rules",
        "export": "aotair build writes the artifact: leave it out",
        "inference_config": "sizes are the recipe's buckets: leave it out",
        "dump_config": "debug.graph_dump.path dumps graphs, and aotair debug compares tensors: leave it out",
        "npugraphex_config": "set the same option at its place in debug, experimental_config or the arguments of load",
    },
    "Debug": {
        "data_dump": "aotair debug compares the tensors of every call, and names the first that is wrong: leave it out",
        "fx_summary": "report.html in the artifact, and aotair inspect, say what a program holds",
        "run_eagerly": "aotair.load(path, device='cpu') runs any artifact without a captured graph",
        "deadlock_check": "streams and events are checked when the artifact is built: leave it out",
    },
    "AclGraphDebug": {
        "static_capture_size_limit": "aotair.load(path, limits=aotair.Limits(captures=…)) limits captured graphs",
    },
    "ExperimentalConfig": {
        "frozen_parameter": "weights always lie at fixed addresses (Model.load_weights replaces them): leave it out",
        "keep_inference_input_mutations": "inputs with mutated: true are always written in place: leave it out",
        "aclgraph": "kernels are the device's own: leave it out",
        **dict.fromkeys(("npu_fx_pass", "aot_config_enable_joint_graph", "aot_config_output_loss_index"), _TRAINING),
        **dict.fromkeys(
            (
                "cc_parallel_enable",
                "memory_efficiency",
                "static_model_ops_lower_limit",
                "jit_compile",
                "topology_sorting_strategy",
                "enable_ref_data",
                "enable_view_optimize",
                "tiling_schedule_optimize",
            ),
            _GE,
        ),
    },
}


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, strict=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in type(self).model_fields:
            _refuse(type(self), name)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # to a type checker any name would be one

        def __getattr__(self, name: str) -> object:
            if name in _ELSEWHERE.get(type(self).__name__, ()):
                _refuse(type(self), name, AttributeError)
            return super().__getattr__(name)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: object) -> object:
        for name in data if isinstance(data, dict) else ():
            if name in _ELSEWHERE.get(cls.__name__, ()):
                _refuse(cls, name)
        return data


def _refuse(kind: type[BaseModel], name: str, error: type[Exception] = ValueError) -> None:
    if (instead := _ELSEWHERE.get(kind.__name__, {}).get(name)) is not None:
        raise error(f"TorchAir's option {name!r} has no effect here: {instead}")
    raise error(f"unknown option {name!r}; {kind.__name__} has {', '.join(kind.model_fields)}")


def _dump_type(value: object) -> object:
    if value == "pbtxt":
        raise ValueError("expected 'py' or 'txt': pbtxt is for GE's graphs, which aotair does not make")
    return value


class GraphDump(_Options):
    """`path`: a directory that receives the graph after each stage. `type`: as what; nothing is dumped where both are
    None, the working directory receives it where `path` is."""

    type: Annotated[Literal["py", "txt"] | None, BeforeValidator(_dump_type)] = Field(
        default=None, description="py: Python code, as TorchAir dumps it; txt: one line for each call"
    )
    path: str | None = Field(default=None, description="a directory; it is made where it is not there")


class AclGraphDebug(_Options):
    """Modes of captured graphs, and passes that can be left out."""

    clone_input: bool = Field(default=True, description="copy user inputs into memory that all buckets share")
    enable_output_clone: bool = Field(default=False, description="hand out outputs as fresh tensors")
    disable_mempool_reuse_in_same_fx: bool = Field(default=False, description="give each bucket memory of its own")
    remove_cat_ops: bool = Field(
        default=True, description="let producers write straight into the slices of a cat's result"
    )
    disable_reinplace_inplaceable_ops_pass: bool = Field(
        default=False, description="leave intermediate ops out-of-place that could write into their first argument"
    )
    disable_reinplace_input_mutated_ops_pass: bool = Field(
        default=False,
        description="compute the new values of mutated inputs and states apart, and copy them there at the end",
    )


class Debug(_Options):
    """TorchAir's places for dumps and for the options of captured graphs."""

    graph_dump: GraphDump = Field(default_factory=GraphDump, description="where each stage writes its graph")
    aclgraph: AclGraphDebug = Field(default_factory=AclGraphDebug, description="modes of captured graphs, and passes")


class ExperimentalConfig(_Options):
    """Options of fusion, streams and planning."""

    composites: Literal["auto", "apart", "whole"] = Field(
        default="auto",
        description="how passes and rules of your own see linear, layer_norm, rms_norm and group_norm: apart, as the "
        "calls that TorchAir shows (t, mm, addmm, native_layer_norm); whole; auto: apart, and whole to those that name "
        "composites and find nothing",
    )
    stream_hazards: Literal["repair", "refuse", "allow"] = Field(
        default="repair", description="what to do with a use across streams that no event orders"
    )
    remove_noop_ops: bool = Field(default=True, description="remove ops that return their input unchanged")
    merge_duplicates: bool = Field(default=True, description="compute once what is computed several times")
    fold_constants: bool = Field(
        default=True,
        description="compute what depends on weights alone before any call: stored in the artifact, and computed again "
        "by load_weights",
    )
    fold_norms: bool = Field(
        default=True,
        description="make batch norms, and products and sums with constants, part of the weights before them: in "
        "float32 and float64, and not without fold_constants",
    )
    merge_products: bool = Field(
        default=True,
        description="one product of weights of four or eight bits that read the same, on the CPU; not without "
        "fold_constants",
    )
    channels_last: bool = Field(
        default=True,
        description="convolutions of images, and what lies between them, in channels-last, which the CPU's kernels are "
        "fastest in; on the CPU alone, with `target: {pack_weights: true}`",
    )
    precision: Literal["bf16"] | None = Field(
        default=None,
        description="bf16: products of float32 with weights, and attention over their results, read and write bfloat16 "
        "and sum in float32; not without fold_constants; null: all is computed in the model's dtypes",
    )
    pattern_fusion_pass: bool = Field(default=True, description="apply fusion rules, aotair's own and registered ones")
    disabled_fusion_rules: list[str] = Field(default_factory=list, description="names of fusion rules to leave out")
    plan_effort: float = Field(
        default=1.0,
        gt=0,
        description="work of the searches for lower memory plans, counted: 1 is a second or so for a bucket",
    )
    verify_rules: bool = Field(
        default=True, description="check each fusion rule on random numbers before it is trusted"
    )
    weight_nz: bool = Field(
        default=False,
        description="on NPUs (Atlas A2 and A3), read weights in the format NZ, into which each load casts them: those "
        "of products in int8, of groups, and of products in float16 and bfloat16",
    )

    @model_validator(mode="after")
    def _stores_rounded_weights(self) -> "ExperimentalConfig":
        if self.precision is not None and not self.fold_constants:
            raise ValueError("precision: bf16 stores rounded weights, which fold_constants: false leaves out: set one")
        return self


def _a_pass(value: object) -> object:
    if value is None or callable(value) or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        return value
    raise ValueError(f"expected module:function, path/to/file.py:function or a callable, not {value!r}")


# A function f(gm, example_inputs, config) -> None, or where to import it from.
CustomPass = Annotated[Any, AfterValidator(_a_pass), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})]


def _no_pool(value: object) -> object:
    if value is not None:
        raise ValueError("a pool belongs to the process that loads: aotair.load(path, pool=…) takes this handle")
    return value


class AclGraphConfig(_Options):
    """TorchAir's place for a pool, which is an argument of `load` here."""

    use_custom_pool: Annotated[None, BeforeValidator(_no_pool)] = Field(
        default=None, description="always null: aotair.load(path, pool=…) takes a pool"
    )


def _mode(value: object) -> object:
    if value == "max-autotune":
        raise ValueError("expected 'reduce-overhead': graphs are captured, and GE's (max-autotune) are not made")
    return value


# The options that take a pass of the user's.
CUSTOM_PASSES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


class CompilerConfig(_Options):
    """What is done to the graph, under TorchAir's names and with its defaults."""

    mode: Annotated[Literal["reduce-overhead", "npugraph_ex"], BeforeValidator(_mode)] = Field(
        default="reduce-overhead", description="both mean captured graphs, the only mode that there is"
    )
    debug: Debug = Field(default_factory=Debug, description="dumps, and options of captured graphs")
    aclgraph_config: AclGraphConfig = Field(default_factory=AclGraphConfig, description="TorchAir's place for a pool")
    experimental_config: ExperimentalConfig = Field(
        default_factory=ExperimentalConfig, description="options of fusion, streams and planning"
    )
    post_grad_custom_pre_pass: CustomPass = Field(default=None, description="a pass of your own, before all others")
    post_grad_custom_post_pass: CustomPass = Field(
        default=None, description="a pass of your own, after fusion and before streams and reinplacing"
    )

    def dumping_into(self, folder: str | Path) -> "CompilerConfig":
        """The same options, with the graph written into that folder after each stage."""
        changed = self.model_copy(deep=True)
        changed.debug.graph_dump.path = str(folder)
        return changed
