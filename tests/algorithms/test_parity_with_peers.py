"""Equal numbers in float64 where ms-swift 4.6 or TRL 0.29 compute the same, pinned ones where they do not.

Importing ms-swift takes most of this file's time.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms import group_centered, k3, loo_advantages, masked_whiten, sequence_ppo_loss

F64 = torch.float64
R = tensor([1.0, 0.0, 0.5, 0.25, 0.2, 0.2, 0.8, 0.0], dtype=F64)
KL = tensor([2.0, -0.5, 1.0, 0.0, 0.3, 0.1, -0.2, 0.4], dtype=F64)
IDS = torch.arange(8) // 4
VALID = torch.ones(8, dtype=torch.bool)
ONE = torch.ones(1, dtype=F64)


@pytest.fixture(scope="module")
def swift_advantage():
    from swift.rl_core import advantage

    return advantage


def swift_rloo(module, rewards, group_size, **options):
    advantages, _ = module.compute_advantages(
        rewards[:, None], ONE, group_size, advantage_estimator="rloo", scale_rewards="none", **options
    )
    return advantages


def test_leave_one_out_equals_ms_swift(swift_advantage):
    ours = loo_advantages(R, IDS, VALID)
    torch.testing.assert_close(ours, swift_rloo(swift_advantage, R, 4), rtol=0, atol=1e-15)


def test_leave_one_out_with_kl_in_the_reward_equals_ms_swift(swift_advantage):
    ours = loo_advantages(R - 0.05 * KL, IDS, VALID)
    theirs = swift_rloo(swift_advantage, R, 4, kl_in_reward=True, beta=0.05, kl_values=KL)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15)


@pytest.fixture
def float64_by_default():
    """ms-swift's function for unequal groups makes its buffers in the default dtype and fails on another."""
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("seed", range(5))
def test_unequal_groups_equal_ms_swift(swift_advantage, seed):
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.randn(11, generator=draw, dtype=F64)
    ids = torch.randint(4, (11,), generator=draw)
    prompts, requests = [str(i) for i in ids.tolist()], [str(i) for i in range(11)]
    theirs, _ = swift_advantage.compute_advantages_dynamic(
        rewards[:, None], ONE, prompts, requests, advantage_estimator="rloo", scale_rewards="none"
    )
    ours = loo_advantages(rewards, ids, torch.ones(11, dtype=torch.bool))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_unscored_row_differs_from_ms_swift_which_counts_it_as_zero(swift_advantage):
    rewards = tensor([1.0, torch.nan, 0.0, 1.0], dtype=F64)
    ours = loo_advantages(rewards, torch.zeros(4, dtype=torch.int64), ~rewards.isnan())
    torch.testing.assert_close(ours, tensor([0.5, 0.0, -1.0, 0.5], dtype=F64))
    theirs = swift_rloo(swift_advantage, rewards, 4)
    torch.testing.assert_close(theirs, tensor([2 / 3, -2 / 3, -2 / 3, 2 / 3], dtype=F64))


def test_reinforce_plus_plus_of_ms_swift_differs_from_the_paper(swift_advantage):
    """Theirs: one value per sequence, sequence-weighted std + 1e-4. Ours: moments over all tokens."""
    rewards, ids = tensor([1.0, 0.0, 0.6, 0.2], dtype=F64), tensor([0, 0, 1, 1])
    theirs, _ = swift_advantage.compute_advantages(
        rewards[:, None], ONE, 2, advantage_estimator="reinforce_plus_plus", scale_rewards="batch"
    )
    pinned = tensor([1.1368885035, -1.1368885035, 0.4547554014, -0.4547554014], dtype=F64)
    torch.testing.assert_close(theirs, pinned, rtol=0, atol=1e-9)
    centered = group_centered(rewards, ids, torch.ones(4, dtype=torch.bool))
    mask = torch.arange(3) < tensor([3, 1, 2, 2])[:, None]
    ours = masked_whiten(centered[:, None].expand(4, 3), mask)[:, 0]
    pinned = tensor([1.0425720703, -1.7376201171, 0.2085144141, -0.9035624609], dtype=F64)
    torch.testing.assert_close(ours, pinned, rtol=0, atol=1e-9)


def test_one_completion_a_prompt_learns_nothing_in_ms_swift(swift_advantage):
    rewards = tensor([1.0, 0.0, 0.4], dtype=F64)
    theirs, _ = swift_advantage.compute_advantages(
        rewards[:, None], ONE, 1, advantage_estimator="reinforce_plus_plus", scale_rewards="batch"
    )
    assert theirs.tolist() == [0.0, 0.0, 0.0]
    mask = torch.ones(3, 2, dtype=torch.bool)
    assert masked_whiten(rewards[:, None].expand(3, 2), mask).abs().min() > 0.1


def test_k3_equals_ms_swift(swift_advantage):
    logprobs, ref = -torch.rand(3, 4, dtype=F64), -torch.rand(3, 4, dtype=F64)
    mask = torch.rand(3, 4) < 0.7
    theirs = swift_advantage.compute_teacher_kl_per_token(ref, logprobs, mask)
    torch.testing.assert_close(k3(logprobs, ref, mask), theirs, rtol=0, atol=1e-15)


@pytest.mark.filterwarnings("ignore")
def test_bessel_whitening_equals_trl_up_to_its_epsilon():
    from trl.experimental.ppo.ppo_trainer import masked_whiten as trl_masked_whiten

    draw = torch.Generator().manual_seed(0)
    values = torch.randn(6, 5, generator=draw, dtype=F64)
    mask = torch.rand(6, 5, generator=draw) < 0.6
    ours = masked_whiten(values, mask, unbiased=True)
    torch.testing.assert_close(ours[mask], trl_masked_whiten(values, mask)[mask], rtol=1e-7, atol=0)


class _TrlStub:
    """The attributes of RLOOTrainer that its loss reads, with given log-probs instead of a model."""

    epsilon_low = epsilon_high = 0.2
    model = SimpleNamespace(training=True)

    def __init__(self, logprobs):
        self._logprobs = logprobs
        self._metrics = {"train": defaultdict(list)}
        self.accelerator = SimpleNamespace(gather=lambda x: x.reshape(-1))

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return self._logprobs, torch.zeros_like(self._logprobs)


def trl_loss(logprobs, old, advantages, mask):
    from trl import RLOOTrainer

    ids = torch.zeros(mask.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": mask.long(),
        "old_logps": (old * mask).sum(1),
        "advantages": advantages,
    }
    return RLOOTrainer._compute_loss(_TrlStub(logprobs), None, inputs)


def loss_example():
    """Four completions of one to three tokens, with ratios on both sides of the clip range."""
    logprobs = tensor(
        [[-4.0, -3.0, -3.0], [-6.0, -6.0, 9.0], [-8.0, 9.0, 9.0], [-3.0, -3.0, -3.0]], dtype=F64
    )
    old = tensor([[-4.1, -3.1, -3.1], [-6.0, -5.9, 9.0], [-8.0, 9.0, 9.0], [-2.8, -2.8, -2.9]], dtype=F64)
    mask = torch.arange(3) < tensor([3, 2, 1, 3])[:, None]
    return logprobs, old, tensor([0.75, -7 / 12, 1 / 12, -0.25], dtype=F64), mask


def test_sequence_loss_and_its_gradient_equal_trl():
    logprobs, old, advantages, mask = loss_example()
    results = []
    for loss_of in (
        lambda x: sequence_ppo_loss(x, old, advantages, mask, 0.2, 0.2).loss_B.mean(),
        lambda x: trl_loss(x, old, advantages, mask),
    ):
        leaf = logprobs.clone().requires_grad_()
        loss = loss_of(leaf)
        loss.backward()
        results.append((loss.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-14)
    assert results[0][0].item() == pytest.approx(-0.0638778765, abs=1e-9)
