"""What `--rlhf_type` can be, as plain data: one row an algorithm, no heavy import."""

from dataclasses import dataclass

from swift_rlx.errors import ConfigError


@dataclass(frozen=True)
class Algorithm:
    """One value of `--rlhf_type`.

    `stock` holds the ms-swift arguments that this algorithm fixes; giving another value on the command line is
    refused. They keep the parts of ms-swift that we reuse consistent with what we compute ourselves.
    """

    name: str
    title: str
    trainer: str
    beta: float
    kl_in_reward: bool
    kl_in_reward_is_fixed: bool
    baseline: str
    baselines: tuple[str, ...]
    reward_clip: float | None
    min_generations: int
    stock: dict[str, str]


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm(
            name="rloo",
            title="RLOO (arXiv 2402.14740)",
            trainer="swift_rlx.trainers.RLOOTrainer",
            beta=0.05,
            kl_in_reward=True,
            kl_in_reward_is_fixed=False,
            baseline="loo",
            baselines=("loo",),
            reward_clip=None,
            min_generations=2,
            stock={"advantage_estimator": "rloo", "scale_rewards": "none"},
        ),
        Algorithm(
            name="reinforce_pp",
            title="REINFORCE++ (arXiv 2501.03262)",
            trainer="swift_rlx.trainers.ReinforcePPTrainer",
            beta=0.01,
            kl_in_reward=True,
            kl_in_reward_is_fixed=False,
            baseline="none",
            baselines=("none", "ema"),
            reward_clip=10.0,
            min_generations=1,
            stock={"advantage_estimator": "reinforce_plus_plus", "scale_rewards": "batch"},
        ),
        Algorithm(
            name="reinforce_pp_baseline",
            title="REINFORCE++-baseline (arXiv 2501.03262)",
            trainer="swift_rlx.trainers.ReinforcePPBaselineTrainer",
            beta=1e-4,
            kl_in_reward=False,
            kl_in_reward_is_fixed=True,
            baseline="mean",
            baselines=("mean",),
            reward_clip=10.0,
            min_generations=2,
            stock={"advantage_estimator": "reinforce_plus_plus", "scale_rewards": "batch"},
        ),
    )
}

ALIASES = {"reinforce++": "reinforce_pp", "reinforce_plus_plus": "reinforce_pp"}
NAMES = (*ALGORITHMS, *ALIASES)
OFFLINE_TRAINER = "swift_rlx.trainers.offline_rloo.OfflineRLOOTrainer"
"""Of a run on stored groups alone."""
TRAINING_CONFIG = "swift_rlx.integration.training_config.RLXConfig"


def resolve(rlhf_type: str) -> Algorithm:
    """The algorithm behind a name or an alias. Raises ConfigError for anything else."""
    name = ALIASES.get(rlhf_type, rlhf_type)
    if name not in ALGORITHMS:
        raise ConfigError(f"rlhf_type {rlhf_type!r} is not one of ours; use one of {', '.join(NAMES)}")
    return ALGORITHMS[name]
