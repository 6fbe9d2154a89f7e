"""Does the builder know what the real torch_npu can do?"""

from cases import ROOT


def test_the_list_of_kernels_is_that_of_the_wheel(npu_kernels: str):
    file = ROOT / "aotair" / "target" / "kernels" / "npu.txt"
    assert file.read_text() == npu_kernels, "make it again with tests/kernel_lists.py"
