"""REINFORCE++ and REINFORCE++-baseline: global normalization of token returns (Hu et al. 2025, arXiv 2501.03262)."""

from typing import Any, ClassVar, Literal

import torch

from swift_rlx.algorithms import (
    EMABaseline,
    group_centered,
    k1,
    masked_moments,
    reverse_returns,
    token_ppo_loss,
    token_rewards,
    whiten,
)
from swift_rlx.errors import CheckpointError
from swift_rlx.trainers.batch import RLXBatch, Rollout
from swift_rlx.trainers.off_policy import per_token
from swift_rlx.trainers.policy_gradient import PolicyLoss
from swift_rlx.trainers.rlx_trainer import RLXTrainer


class _TokenTrainer(RLXTrainer):
    """PPO-clip per token, averaged over the tokens of the whole optimizer step."""

    loss_unit: ClassVar[Literal["row", "token"]] = "token"

    def whitened(self, values_nT: torch.Tensor, mask_nT: torch.Tensor, rollout: Rollout) -> torch.Tensor:
        """Values normalized over the tokens of all ranks. The mean that is taken out couples to lengths: logged."""
        moments = masked_moments(values_nT, mask_nT, reduce_sum=rollout.reduce_sum)
        self.record_moments(moments)
        return whiten(values_nT, mask_nT, moments)

    def policy_loss(
        self,
        logprobs_BT: torch.Tensor,
        old_BT: torch.Tensor,
        batch: RLXBatch,
        weights: torch.Tensor | None = None,
    ) -> PolicyLoss:
        mask = batch.loss_mask
        loss = token_ppo_loss(
            logprobs_BT, old_BT, batch.advantages, mask, self.epsilon_low, self.epsilon_high
        )
        loss_BT = loss.loss_BT if weights is None else loss.loss_BT * per_token(weights)
        return PolicyLoss(
            total=loss_BT.sum(),
            clipped_low=(loss.clipped_low_BT & mask).sum(),
            clipped_high=(loss.clipped_high_BT & mask).sum(),
        )


class ReinforcePPTrainer(_TokenTrainer):
    """REINFORCE++ for any number of completions a prompt, also one.

    r_t = -beta k1_t, plus R at the last token; G_t = r_t + gamma G_{t+1}; A = (G - mean) / std over all tokens of the
    generation batch. With `group_baseline ema` A = G - V instead: V is a running mean of the rewards, and the mean of
    a global normalization would take it out again.
    """

    algorithm: ClassVar[str] = "reinforce_pp"

    def _prepare_algorithm_params(self) -> None:
        super()._prepare_algorithm_params()
        uses_ema = self.args.group_baseline == "ema"
        self.ema_baseline = EMABaseline(self.args.ema_baseline_decay) if uses_ema else None

    def estimate_advantages(self, rollout: Rollout) -> torch.Tensor:
        mask = rollout.mask_nT & rollout.valid_N[rollout.rows, None]
        kl = torch.zeros_like(mask, dtype=torch.float32)
        if self.kl_is_in_reward:
            kl = k1(rollout.proximal_logprobs_nT, rollout.ref_logprobs_nT, mask)
            self.record_sequence_kl(rollout.gather(kl.sum(1))[rollout.valid_N])
        beta = self.beta if self.kl_is_in_reward else 0.0
        rewards_nT = token_rewards(rollout.rewards_N[rollout.rows], kl, mask, beta)
        returns = reverse_returns(rewards_nT, mask, self.args.gamma)
        if self.ema_baseline is None:
            return self.whitened(returns, mask, rollout)
        return (returns - self._running_mean(self.ema_baseline, rollout)) * mask

    @staticmethod
    def _running_mean(baseline: EMABaseline, rollout: Rollout) -> float:
        """V before this batch changes it, which keeps the estimator unbiased; evaluation leaves it be."""
        value = baseline.baseline(rollout.rewards_N, rollout.valid_N)
        if rollout.is_training:
            baseline.update(baseline.batch_mean(rollout.rewards_N, rollout.valid_N))
        return value

    def restart_reward_baseline(self) -> None:
        if self.ema_baseline is not None:
            self.ema_baseline = EMABaseline(self.args.ema_baseline_decay)

    def algorithm_state(self) -> dict[str, Any]:
        return {} if self.ema_baseline is None else {"ema_baseline": self.ema_baseline.state_dict()}

    def load_algorithm_state(self, state: dict[str, Any]) -> None:
        if self.ema_baseline is None:
            return
        if "ema_baseline" not in state:
            raise CheckpointError(
                "the checkpoint was trained without --group_baseline ema and has no running mean of the rewards; drop"
                " the flag, or take only the weights with --resume_only_model true"
            )
        self.ema_baseline.load_state_dict(state["ema_baseline"])


class ReinforcePPBaselineTrainer(_TokenTrainer):
    """REINFORCE++-baseline: c_i = R_i minus its group's mean, normalized over all tokens; KL is a k2 loss."""

    algorithm: ClassVar[str] = "reinforce_pp_baseline"

    def estimate_advantages(self, rollout: Rollout) -> torch.Tensor:
        centered_N = group_centered(rollout.rewards_N, rollout.group_ids_N, rollout.valid_N)
        mask = rollout.mask_nT & rollout.valid_N[rollout.rows, None]
        return self.whitened(centered_N[rollout.rows, None] * mask, mask, rollout)
