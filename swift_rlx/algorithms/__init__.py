"""The published formulas as pure tensor functions: one short file per formula, torch only, no trainer.

Letters in names: `B` sequences of the batch, `T` padded completion tokens. A mask is True where the policy
sampled the token; padding, prompt and tool output are False. What stands at masked positions or in invalid
rows is never read, so NaN or inf there does no harm. float64 inputs stay float64; float16 and bfloat16 are
computed in float32.
"""

from .ema_baseline import EMABaseline
from .group_mean import group_centered
from .importance import CORRECTIONS, importance_weights
from .importance_ratio import ImportanceWeights, behavior_log_ratio
from .kl import k1, k2, k3, sequence_kl
from .leave_one_out import loo_advantages
from .off_policy_meter import BUCKET_EDGES, CELLS, OffPolicyMeter, OffPolicySummary
from .product_weights import prefix_product, sequence_product
from .row_filters import k3_row_filter, off_policy_sequence_mask
from .sequence_loss import SequenceLoss, sequence_ppo_loss
from .token_loss import TokenLoss, token_ppo_loss
from .token_returns import reverse_returns, token_rewards
from .token_weights import token_mask, token_truncate, two_sided_mask
from .whitening import Moments, masked_moments, masked_whiten, whiten

__all__ = [
    "BUCKET_EDGES",
    "CELLS",
    "CORRECTIONS",
    "EMABaseline",
    "ImportanceWeights",
    "Moments",
    "OffPolicyMeter",
    "OffPolicySummary",
    "SequenceLoss",
    "TokenLoss",
    "behavior_log_ratio",
    "group_centered",
    "importance_weights",
    "k1",
    "k2",
    "k3",
    "k3_row_filter",
    "loo_advantages",
    "masked_moments",
    "masked_whiten",
    "off_policy_sequence_mask",
    "prefix_product",
    "reverse_returns",
    "sequence_kl",
    "sequence_ppo_loss",
    "sequence_product",
    "token_mask",
    "token_ppo_loss",
    "token_rewards",
    "token_truncate",
    "two_sided_mask",
    "whiten",
]
