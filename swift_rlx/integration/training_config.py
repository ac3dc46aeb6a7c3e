"""The training configuration that ms-swift builds from our arguments."""

from dataclasses import dataclass

from swift.rlhf_trainers.arguments import GRPOConfig

from swift_rlx.integration.fields import RLXFields


@dataclass
class RLXConfig(RLXFields, GRPOConfig):
    """GRPOConfig plus our fields. `gamma` is ms-swift's own PPO argument, which GRPOConfig does not carry."""

    rlx_type: str = "rloo"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        # With dropout on, the proximal and the current log-probs differ and the first ratio is not 1.
        self.disable_dropout = True
        super().__post_init__()
