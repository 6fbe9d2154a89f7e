"""CompilerConfig: options under TorchAir's names, at TorchAir's dotted places, with TorchAir's defaults.

Only options that have an effect are here; any other name is refused where it is set.
"""

from pydantic import BaseModel, ConfigDict, Field


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


class Debug(_Options):
    graph_dump: GraphDump = Field(default_factory=GraphDump)
    aclgraph: AclGraphDebug = Field(default_factory=AclGraphDebug)


class ExperimentalConfig(_Options):
    remove_noop_ops: bool = Field(True, description="remove ops that return their input unchanged")


class CompilerConfig(_Options):
    debug: Debug = Field(default_factory=Debug)
    experimental_config: ExperimentalConfig = Field(default_factory=ExperimentalConfig)
