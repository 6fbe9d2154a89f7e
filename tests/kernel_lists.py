"""How are the lists in aotair/target/kernels made? From the real packages, by the tests that compare them."""

import pathlib

import torch


def npu() -> str:
    """The aten ops that torch_npu implements, one a line; in a process that has torch_npu and nothing simulated yet."""
    return _text(
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
    )


def cuda() -> str:
    """The aten ops that torch implements for CUDA, one a line, by the table that torch itself is generated from."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DispatchKey

    native = pathlib.Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    kernels = parsed.backend_indices[DispatchKey.CUDA]
    own = {str(f.func.name) for f in parsed.native_functions if kernels.has_kernel(f)}
    structured = {
        str(f.func.name) for f in parsed.native_functions if f.structured_delegate and str(f.structured_delegate) in own
    }
    return _text(own | structured)


def _text(names) -> str:
    return "".join(f"{name}\n" for name in sorted(names))
