"""What does each rank do in the test of products that meet other ranks? For `ranks.Ranks`."""

import torch
import torch.distributed as dist
from rankbodies import values


def products() -> list[str]:
    """Products that meet the other ranks by the communicator's name: their numbers, and what is refused."""
    npu, size, rank = torch.ops.npu, dist.get_world_size(), dist.get_rank()
    name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    every = [values(each, 8 * 256).view(8, 256).half() / 8 for each in range(size)]
    weight = values(0, 256 * 16).view(256, 16).half() / 64
    x, w, wrong = every[rank].npu(), weight.npu(), []
    total = sum((one @ weight).float() for one in every)
    made = {
        "all_reduce": (npu.npu_mm_all_reduce_base(x.view(2, 4, 256), w, name).flatten(0, 1), total),
        "reduce_scatter": (npu.npu_mm_reduce_scatter_base(x, w, name, size), total.chunk(size)[rank]),
        "all_gather": (npu.npu_all_gather_base_mm(x, w, name, size)[0], torch.cat(every) @ weight),
        "gathered": (npu.npu_all_gather_base_mm(x, w, name, size)[1], torch.cat(every)),
    }
    for what, (got, want) in made.items():
        if not torch.allclose(got.cpu().float(), want.float(), atol=0.05, rtol=0.01):
            wrong.append(f"{what}: {(got.cpu() - want).abs().max()}")
    for what, call, says in (
        ("another communicator", lambda: npu.npu_mm_all_reduce_base(x, w, f"not {name}"), "no communicator"),
        ("float32", lambda: npu.npu_mm_all_reduce_base(x.float(), w.float(), name), "multiplies no"),
        ("another reduction", lambda: npu.npu_mm_all_reduce_base(x, w, name, reduce_op="max"), "no such"),
        ("a bias", lambda: npu.npu_mm_all_reduce_base(x, w, name, bias=w[0]), "without bias"),
        ("a turned factor", lambda: npu.npu_mm_all_reduce_base(w.t(), w, name), "without gaps"),
        ("another size", lambda: npu.npu_mm_reduce_scatter_base(x, w, name, size + 1), "the call is for"),
        ("few columns", lambda: npu.npu_all_gather_base_mm(x[:, :128].clone(), w[:128], name, size), "columns"),
    ):
        if says not in (text := _error_of(call)):
            wrong.append(f"{what}: {text or 'not refused'}")
    return wrong


def _error_of(call) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""
