"""Random states: like what calls of the original wrote, and the same at each build."""

import torch

from aotair.prove.lived import Lived


def test_states_are_what_calls_wrote_into_them():
    lived, before = Lived(), torch.zeros(32, 4)
    after = before.clone()
    after[:16] = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10, 0.1, 1]) + 5
    lived.saw("keys", before, after)
    found = lived.states({"keys": torch.zeros(4096, 4), "other": torch.zeros(4096), "steps": torch.zeros(3).long()}, 1)
    assert set(found) == {"keys", "other"} and abs(found["other"].mean()) < 0.1
    torch.testing.assert_close(found["keys"].mean(0), after[:16].mean(0), rtol=0.2, atol=0.5)
    torch.testing.assert_close(found["keys"].std(0), after[:16].std(0), rtol=0.5, atol=0.0)
    assert found["keys"].min() >= after[:16].min() and found["keys"].max() <= after[:16].max()
    again = lived.states({"keys": torch.zeros(4096, 4)}, 1)["keys"]
    assert torch.equal(found["keys"], again) and found["keys"].unique().numel() > 8192


def test_what_says_too_little_says_nothing():
    lived = Lived()
    lived.saw("total", torch.zeros(3), torch.tensor([1.0, torch.inf, torch.nan]))
    lived.saw("flag", torch.zeros(20), torch.ones(20))
    lived.saw("same", torch.ones(20, 2), torch.ones(20, 2))
    for tensor in lived.states({name: torch.zeros(1000) for name in ("total", "flag", "same")}, 0).values():
        assert tensor.isfinite().all() and abs(tensor.mean()) < 0.2 and 0.8 < tensor.std() < 1.2
