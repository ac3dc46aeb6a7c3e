"""RLOO on stored groups, and the offline objectives beside it: `swift rlhf --rlhf_type rloo --dataset STORE`."""

from swift_rlx.trainers.constrained_run import ConstrainedRunMixin
from swift_rlx.trainers.objective_loss import ObjectiveLossMixin
from swift_rlx.trainers.offline_run import OfflineRunMixin
from swift_rlx.trainers.rloo import RLOOTrainer


class OfflineRLOOTrainer(ConstrainedRunMixin, OfflineRunMixin, ObjectiveLossMixin, RLOOTrainer):
    """`rloo_is` is RLOO's own loss with importance weights from the stored log-probs; others replace the loss."""
