"""Our trainers on ms-swift's GRPOTrainer."""

from swift_rlx.trainers.reinforce_pp import ReinforcePPBaselineTrainer, ReinforcePPTrainer
from swift_rlx.trainers.rloo import RLOOTrainer

__all__ = ["RLOOTrainer", "ReinforcePPBaselineTrainer", "ReinforcePPTrainer"]
