"""The published formulas as pure tensor functions: one short file per formula, torch only, no trainer.

Letters in names: `B` sequences of the batch, `T` padded completion tokens. A mask is True where the policy
sampled the token; padding, prompt and tool output are False. What stands at masked positions or in invalid
rows is never read, so NaN or inf there does no harm. float64 inputs stay float64; float16 and bfloat16 are
computed in float32.
"""

from .ema_baseline import EMABaseline
from .group_mean import group_centered
from .kl import k1, k2, k3, sequence_kl
from .leave_one_out import loo_advantages
from .sequence_loss import SequenceLoss, sequence_ppo_loss
from .token_loss import TokenLoss, token_ppo_loss
from .token_returns import reverse_returns, token_rewards
from .whitening import Moments, masked_moments, masked_whiten, whiten

__all__ = [
    "EMABaseline",
    "Moments",
    "SequenceLoss",
    "TokenLoss",
    "group_centered",
    "k1",
    "k2",
    "k3",
    "loo_advantages",
    "masked_moments",
    "masked_whiten",
    "reverse_returns",
    "sequence_kl",
    "sequence_ppo_loss",
    "token_ppo_loss",
    "token_rewards",
    "whiten",
]
