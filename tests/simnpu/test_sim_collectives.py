"""Do ranks on simulated NPUs meet in torch_npu's own HCCL group, in captures too, and is what goes wrong an error?"""

import itertools
import pathlib
import re
import subprocess
import sys
import time

import pytest
import rankbodies
import rankproducts
from ranks import RankError, Ranks

COUNT = 4
MEGABYTE = 1 << 20
_stores = itertools.count()


@pytest.fixture(scope="module")
def ranks():
    with Ranks(COUNT) as found:
        yield found


def renew(ranks: Ranks, only: list[int] | None = None) -> None:
    """A new process group of these ranks, whatever has become of the old one."""
    ranks.renew(f"group {next(_stores)}", rankbodies.renew, only)


@pytest.fixture
def spoiled(ranks):
    """Ranks whose group is of no use after the test: then they have another."""
    yield ranks
    renew(ranks)
    assert ranks.run(rankbodies.reduce_ones) == [COUNT] * COUNT


def test_every_type_and_reduction(ranks):
    assert ranks.run(rankbodies.reductions) == [[]] * COUNT


def test_average_and_bool(ranks):
    assert ranks.run(rankbodies.average_and_bool) == [([1.5, 1.5], [True, False])] * COUNT


def test_products_that_meet_the_other_ranks(ranks):
    assert ranks.run(rankproducts.products) == [[]] * COUNT


def test_each_call(ranks):
    assert ranks.run(rankbodies.each_call) == [[]] * COUNT


def test_each_call_in_a_capture(ranks):
    assert ranks.run(rankbodies.each_call_captured) == [[]] * COUNT


def test_no_order_is_wrong_where_all_is_waited_for(ranks):
    assert ranks.run(rankbodies.random_orders, 100, True) == [0] * COUNT


def test_a_missing_wait_for_a_collective_is_wrong_in_some_orders(ranks):
    assert all(5 < wrong <= 100 for wrong in ranks.run(rankbodies.random_orders, 100, False))


def test_two_groups_on_two_streams_need_no_common_order(ranks):
    assert ranks.run(rankbodies.two_groups, 60) == [0] * COUNT


def test_a_communicator_cannot_be_made_in_a_capture(ranks):
    for outcome in ranks.outcomes(rankbodies.first_call_in_a_capture):
        assert isinstance(outcome, RankError)
    assert ranks.run(rankbodies.reduce_ones) == [COUNT] * COUNT


def test_the_host_goes_on_while_a_replay_waits(ranks):
    expected = [float(sum(range(COUNT)) * COUNT**2)] * 2
    assert ranks.run(rankbodies.host_goes_on) == [expected] * COUNT


def test_work_behind_a_collective_waits_for_it(ranks):
    total = sum(range(COUNT))
    assert ranks.run(rankbodies.eager_goes_on) == [[16, 16, 4 * total**2 - total]] * COUNT


def test_counters(ranks):
    for calls, size, communicators, reserved in ranks.run(rankbodies.counters):
        assert (calls, size) == (2, 48)
        assert communicators >= 1 and reserved >= 2 * 200 * MEGABYTE


def test_a_launch_that_fails(ranks):
    assert ranks.run(rankbodies.refused_launch) == [COUNT] * COUNT


def test_buffers_need_memory(ranks):
    for outcome in ranks.outcomes(rankbodies.no_memory_for_buffers):
        assert "no memory left for its buffers" in str(outcome)


def test_a_kernel_that_the_device_lacks_is_an_error(spoiled):
    assert all("OPS function error" in str(outcome) for outcome in spoiled.outcomes(rankbodies.unaligned_list))


WRONG = {
    "count": ("HcclAllReduce of 16 float32, sum", "HcclAllReduce of 12 float32, sum"),
    "type": ("HcclAllReduce of 16 float32, sum", "HcclAllReduce of 16 int32, sum"),
    "reduction": ("HcclAllReduce of 16 float32, sum", "HcclAllReduce of 16 float32, max"),
    "operation": ("HcclAllReduce of 16 float32, sum", "HcclBroadcast of 16 float32 from rank 0"),
    "root": ("HcclBroadcast of 16 float32 from rank 0", "HcclBroadcast of 16 float32 from rank 1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_ranks_that_disagree(spoiled, what):
    ours, theirs = WRONG[what]
    for outcome in spoiled.outcomes(rankbodies.disagree, what):
        assert re.search(rf"collective \d+ is {ours} on rank 0 and {theirs} on rank 1", str(outcome))


def test_parts_that_do_not_fit(spoiled):
    outcomes = spoiled.outcomes(rankbodies.disagree, "parts")
    assert any("rank 1 sends 32 bytes to rank 0, which expects 16 from it" in str(one) for one in outcomes)


def test_graphs_in_another_order(spoiled):
    for outcome in spoiled.outcomes(rankbodies.disagree_in_a_graph):
        assert "sum on rank 0 and HcclBroadcast of 4 float32 from rank 0 on rank 1" in str(outcome)


def test_messages_that_differ(spoiled):
    outcomes = spoiled.outcomes(rankbodies.messages_differ)
    for outcome in outcomes[:2]:
        assert "HcclSend of 4 float32 to rank 1 there and HcclRecv of 8 float32 from rank 0 here" in str(outcome)
    assert outcomes[2:] == [None] * (COUNT - 2)


def test_a_kernel_that_fails_on_one_rank(spoiled):
    outcomes = spoiled.outcomes(rankbodies.kernel_fails_on, 1)
    assert all(isinstance(outcome, RankError) for outcome in outcomes)
    assert "rank 1 gave up HcclAllReduce of 4 float32, sum" in str(outcomes[0])


def test_a_graph_that_outlives_its_group(ranks):
    for outcome in ranks.outcomes(rankbodies.graph_outlives_its_group):
        assert re.search(r"rank \d has destroyed", str(outcome))
    assert ranks.run(rankbodies.reduce_ones) == [COUNT] * COUNT


def test_a_null_device_waits_for_nobody(ranks):
    ranks.run(rankbodies.reduce_ones)
    ranks.run(rankbodies.reduce_without_device, only=[0])
    assert ranks.run(rankbodies.reduce_ones) == [COUNT] * COUNT


def test_a_rank_that_never_comes(spoiled):
    outcomes = spoiled.outcomes(rankbodies.stay_away, 2, 1.0)
    for rank in (0, 1, 3):
        text = str(outcomes[rank])
        assert "for rank 2 in HcclAllReduce of 4 float32, sum, while rank 2 is in no call of HCCL" in text
        assert 0.9 < float(re.search(r"after (\S+) s:", text)[1]) < 5


def test_a_rank_that_comes_too_late(spoiled):
    outcomes = spoiled.outcomes(rankbodies.come_late, 1, 0.5)
    assert all("waited 0.5 s for rank 1 in HcclAllReduce" in str(outcome) for outcome in outcomes)


def test_a_rank_that_dies(ranks):
    ranks.send(rankbodies.replay_until_error, 20)
    ranks.processes[COUNT - 1].join()
    started = time.monotonic()
    for outcome in ranks.receive(range(COUNT - 1)):
        assert f"rank {COUNT - 1} (process {ranks.processes[COUNT - 1].pid}) has died" in str(outcome)
    assert time.monotonic() - started < 5
    left = list(range(COUNT - 1))
    renew(ranks, left)
    assert ranks.run(rankbodies.reduce_ones, 3, only=left) == [COUNT - 1.0] * len(left)


SCRIPT = """
import os, simnpu, torch, torch.distributed as dist
simnpu.install()
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
x = torch.ones(3, device="npu") * (dist.get_rank() + 1)
dist.all_reduce(x)
assert x.device.index == dist.get_rank() and x.cpu().tolist() == [3.0] * 3
dist.barrier()
dist.destroy_process_group()
"""


def test_torchrun(tmp_path):
    script = pathlib.Path(tmp_path) / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
