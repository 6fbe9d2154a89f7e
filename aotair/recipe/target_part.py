"""What a recipe may say of the devices that its artifact is for: its part `target`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.memory.amounts import read_budget, read_bytes

from .part import Part

Bytes = Annotated[
    int, BeforeValidator(read_bytes), Field(ge=0, lt=1 << 46), WithJsonSchema({"type": ["integer", "string"]})
]
Budget = Annotated[
    int | float, BeforeValidator(read_budget), Field(gt=0), WithJsonSchema({"type": ["integer", "number", "string"]})
]


class TargetPart(Part):
    """What the artifact will run on."""

    device: Literal["cpu", "cuda", "npu"] = Field(
        default="cpu", description="the kind of device; the build machine needs none"
    )
    soc: str | None = Field(
        default=None, min_length=1, description="how the name of the device begins, as Ascend910B; null: any"
    )
    torch_npu: str | None = Field(
        default=None, pattern=r"^\d+(\.\d+)*$", description="the least version of torch_npu on the node; null: any"
    )
    memory_budget: Budget | None = Field(
        default=None, description="the most that the model may take: bytes (24GiB), or a share of the device (0.9, 90%)"
    )
    device_memory: Bytes | None = Field(
        default=None, description="bytes of the device, so that a share can be checked at build time"
    )
    workspace: Bytes | None = Field(
        default=None,
        description="bytes that kernels take beside planned memory, for each stream; null: what cuBLAS takes",
    )
    reserve: Bytes = Field(default=0, description="bytes that the device itself and its graphs take")
    hccl_buffer: Bytes | None = Field(
        default=None,
        description="whole MiB of each of the two buffers that a communicator of HCCL has, one for each axis of mesh: "
        "they are promised then; null: what HCCL_BUFFSIZE says on the node, and not promised",
    )
    allow_namespaces: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        default_factory=list, description="namespaces of custom ops that every node defines and allows when it loads"
    )
    allow_ops: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+::[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?$")]] = Field(
        default_factory=list, description="ops beyond the runtime's table, as aten::bincount, that every load allows"
    )
    pack_weights: bool = Field(
        default=True,
        description="let nodes keep weights in the form that their kernels read fastest (CPU: linear layers in "
        "bfloat16, and in float32 on AMD's processors or with a library of oneDNN), beside those in the file",
    )

    @property
    def allowed(self) -> Allowed:
        """What a program may call on its nodes."""
        return Allowed(tuple(self.allow_namespaces), tuple(self.allow_ops))

    @model_validator(mode="after")
    def _consistent(self) -> "TargetPart":
        if self.torch_npu is not None and self.device != "npu":
            raise ValueError("torch_npu is a requirement of device: npu")
        if self.hccl_buffer is not None and self.device != "npu":
            raise ValueError("hccl_buffer is for communicators of device: npu")
        if self.hccl_buffer is not None and (not self.hccl_buffer or self.hccl_buffer % (1 << 20)):
            raise ValueError("hccl_buffer takes whole MiB, as 200MiB, and one at least")
        if self.soc is not None and self.device == "cpu":
            raise ValueError("soc is how the name of an NPU or a GPU begins: leave it out, or say which device it is")
        if self.soc is not None and self.device == "npu" and not self.soc.startswith("Ascend"):
            raise ValueError("soc is how an NPU's name begins, which is Ascend910B, Ascend910_93 or another Ascend")
        return self
