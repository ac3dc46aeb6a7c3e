"""RLOO: REINFORCE on whole completions with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740)."""

from typing import ClassVar, Literal

import torch

from swift_rlx.algorithms import loo_advantages, sequence_kl, sequence_ppo_loss
from swift_rlx.trainers.batch import RLXBatch, Rollout
from swift_rlx.trainers.policy_gradient import PolicyLoss
from swift_rlx.trainers.rlx_trainer import RLXTrainer


class RLOOTrainer(RLXTrainer):
    """One action is the whole completion: its log-prob is the token sum, with no length or std division.

    R'_i = R_i - beta sum_t (log pi_old - log pi_ref), A_i = R'_i - mean of the other R'_j of its prompt, and
    the loss is the mean over completions of -min(rho_i A_i, clip(rho_i) A_i) with the product ratio rho_i. Used once,
    rho_i = 1 and this is plain REINFORCE.
    """

    algorithm: ClassVar[str] = "rloo"
    loss_unit: ClassVar[Literal["row", "token"]] = "row"

    def estimate_advantages(self, rollout: Rollout) -> torch.Tensor:
        shaped_N = rollout.rewards_N
        if self.kl_is_in_reward:
            kl_n = sequence_kl(rollout.proximal_logprobs_nT, rollout.ref_logprobs_nT, rollout.mask_nT)
            kl_N = rollout.gather(kl_n)
            self.record_sequence_kl(kl_N[rollout.valid_N])
            shaped_N = shaped_N - self.beta * kl_N
        advantages_N = loo_advantages(shaped_N, rollout.group_ids_N, rollout.valid_N)
        return advantages_N[rollout.rows, None].expand(rollout.mask_nT.shape)

    def policy_loss(
        self,
        logprobs_BT: torch.Tensor,
        old_BT: torch.Tensor,
        batch: RLXBatch,
        weights: torch.Tensor | None = None,
    ) -> PolicyLoss:
        mask = batch.loss_mask
        advantages_B = batch.advantages[:, 0]  # one per completion, the same at each of its tokens
        per_token = weights if weights is not None and weights.ndim == 2 else None
        loss = sequence_ppo_loss(
            logprobs_BT, old_BT, advantages_B, mask, self.epsilon_low, self.epsilon_high, per_token
        )
        loss_B = loss.loss_B if weights is None or weights.ndim == 2 else loss.loss_B * weights
        rows = mask.any(1)
        return PolicyLoss(
            total=loss_B.sum(),  # 0, with a gradient of 0, for a row without tokens that train
            clipped_low=(loss.clipped_low_B & rows).sum(),
            clipped_high=(loss.clipped_high_B & rows).sum(),
        )
