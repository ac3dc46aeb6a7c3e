"""The training configuration: what ms-swift builds from our arguments, or a user in Python."""

from dataclasses import dataclass, field
from typing import Any

from swift.rlhf_trainers.arguments import GRPOConfig

from swift_rlx.errors import ConfigError
from swift_rlx.integration.algorithm_table import resolve
from swift_rlx.integration.conflicts import REFUSALS, check_reuse, check_training_conflicts
from swift_rlx.integration.contract import require
from swift_rlx.integration.engine_options import defaults_of, engine_options, refuse_replaced
from swift_rlx.integration.fields import FIELD_DEFAULTS, RLXFields, adopt
from swift_rlx.integration.rollout_fields import resolve_rollout
from swift_rlx.integration.store_fields import is_offline


@dataclass
class RLXConfig(RLXFields, GRPOConfig):
    """ms-swift's GRPOConfig (an extended `transformers.TrainingArguments`) plus the fields of swift-rlx.

    `beta` and `kl_in_reward` left at None are the algorithm's. `gamma` is ms-swift's own PPO argument, which
    GRPOConfig does not carry. `rlx_type` is set by the trainer, or by `swift rlhf`. The last five are ms-swift's
    arguments too: how a model was loaded, for the rollout workers that load it again.
    """

    rlx_type: str | None = None
    rlx_engine_options: dict | None = None
    rlx_worker_devices: list | None = None
    rlx_offline: dict | None = None
    beta: float | None = None
    gamma: float = 1.0
    attn_impl: str | None = None
    experts_impl: str | None = None
    rope_scaling: dict | None = None
    new_special_tokens: list[str] = field(default_factory=list)
    external_plugins: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # With dropout on, the proximal and the current log-probs differ and the first ratio is not 1.
        self.disable_dropout = True
        super().__post_init__()

    def settle(self, name: str) -> None:
        """Become the configuration of the algorithm `name`, with its defaults and checks.

        Raises ConfigError for what the algorithm refuses, and if this is another's configuration already.
        """
        if self.rlx_type is None:
            require()
            algorithm = resolve(name)
            refusals = [refusal for refusal in REFUSALS if hasattr(self, refusal.argument)]
            check_training_conflicts(self, algorithm, refusals)
            adopt(self, algorithm)
            if is_offline(self):
                raise ConfigError(
                    f"--offline_ratio 1 of {self.trajectory_store} is refused in an RLXConfig: a run on stored groups"
                    " alone is rlhf_main(RLHFArguments(rlhf_type='rloo', dataset=['STORE'], ...))"
                )
            self._take_engine_options()
        elif self.rlx_type != name:
            raise ConfigError(
                f"this RLXConfig belongs to a trainer of {self.rlx_type} and cannot be used for {name}; make"
                " another one"
            )

    def _take_engine_options(self) -> None:
        if self.async_rollout:
            refuse_replaced(self, defaults_of(GRPOConfig), self.rlx_type)
        self.rlx_engine_options = engine_options(self, defaults_of(GRPOConfig))

    def change_rollout(self, **fields: Any) -> None:
        """Change fields of the pipeline before it starts. Raises ConfigError as `--async_rollout` and its flags do.

        After an error all fields are as they were.
        """
        before = dict(self.__dict__)
        try:
            for name, value in fields.items():
                setattr(self, name, value)
            self.rlx_worker_devices = None
            resolve_rollout(self, FIELD_DEFAULTS)
            check_reuse(self)
            self._take_engine_options()
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
