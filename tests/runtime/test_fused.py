"""A decoder layer of plain PyTorch, fused where the device has the ops for it: step by step like the original."""

import torch

from aotair_runtime.artifact.open import read_program

FUSED = {
    "npu::npu_add_rms_norm",
    "npu::npu_swiglu",
    "npu::npu_rotary_mul",
    "npu::npu_fused_infer_attention_score",
}


def test_a_decoder_layer_answers_like_the_original(node, original):
    model, reference = node.load("decoder_layer", enable_output_clone=True), original("decoder_layer")
    generator = torch.Generator("cpu").manual_seed(0)
    for position in range(8):
        for n in (4, 1, 2):
            x, residual = (torch.randn(n, 1, 32, generator=generator, device="cpu").half() for _ in range(2))
            arguments = x.to(node.device), residual.to(node.device), torch.tensor([position])
            got, want = model(*arguments), reference(*arguments)
            torch.testing.assert_close(got.cpu(), want.cpu(), atol=1e-2, rtol=1e-2)
    for name in ("keys", "values"):
        mine, theirs = model.state[name].cpu(), dict(reference.named_buffers())[name].cpu()
        torch.testing.assert_close(mine, theirs, atol=1e-2, rtol=1e-2)
        assert mine.abs().sum() > 0


def test_it_is_made_of_npu_ops_on_an_npu(node):
    ops = {op.name for op in read_program(node.path("decoder_layer")).ops}
    assert ops & FUSED == (FUSED if node.kind == "npu" else set())
    assert node.kind != "npu" or not {"aten::rsqrt.out", "aten::silu.out", "aten::pow.Tensor_Scalar_out"} & ops
