"""The base of all our trainers: fed by the pipeline or strictly on-policy, evaluated on every row once, resumed."""

from typing import Any, ClassVar

from accelerate.utils import is_peft_model

from swift_rlx.errors import ConfigError
from swift_rlx.integration.algorithm_table import resolve
from swift_rlx.integration.training_config import RLXConfig
from swift_rlx.trainers import startup
from swift_rlx.trainers.async_rollout import AsyncRolloutMixin
from swift_rlx.trainers.evaluation import EvaluationMixin
from swift_rlx.trainers.monitoring import MonitoringMixin
from swift_rlx.trainers.policy_gradient import PolicyGradientTrainer
from swift_rlx.trainers.process_group import ProcessGroupMixin
from swift_rlx.trainers.resume import ResumeMixin
from swift_rlx.trainers.stopping import StoppingMixin
from swift_rlx.trainers.stored_training import StoredTrainingMixin


class RLXTrainer(
    StoppingMixin,
    ProcessGroupMixin,
    StoredTrainingMixin,
    MonitoringMixin,
    AsyncRolloutMixin,
    ResumeMixin,
    EvaluationMixin,
    PolicyGradientTrainer,
):
    """Trains on batches of the asynchronous pipeline, or samples each by the weights that it then trains.

    `model` and `template` are ms-swift's (`swift.get_model_processor`, `swift.get_template`), `args` an RLXConfig,
    `train_dataset` has the column `messages`, and `reward_funcs` are names, functions or objects. Further
    keywords are those of ms-swift's GRPOTrainer.

    Raises ConfigError for what cannot be trained, before the first step.
    """

    algorithm: ClassVar[str]
    """The name in `integration.algorithm_table`."""

    def __init__(
        self, model: Any, *, args: RLXConfig, template: Any, train_dataset: Any, **kwargs: Any
    ) -> None:
        if not isinstance(args, RLXConfig):
            raise ConfigError(
                f"{type(self).__name__} got args of type {type(args).__name__}; give a swift_rlx.RLXConfig"
            )
        args.settle(self.algorithm)
        if not (kwargs.get("reward_funcs") or kwargs.get("reward_model") or args.use_gym_env or args.gym_env):
            raise ConfigError(
                f"{type(self).__name__} has no reward to learn from: give reward_funcs=[...] or reward_model=[...]"
            )
        template.set_mode("train")  # encode the completions too; `swift rlhf` has done it already
        train_dataset = self.fitted(train_dataset, template, model, args)
        startup.check_rows(train_dataset, args)
        self.min_group_size = resolve(args.rlx_type).min_generations
        super().__init__(model, args=args, template=template, train_dataset=train_dataset, **kwargs)
        if self.beta != 0.0 and self.ref_model is None and not is_peft_model(self.model):
            raise ConfigError(
                f"beta {self.beta:g} measures the KL from a reference, and there is none: without an adapter to"
                " switch off give ref_model=, a second copy of the model, or use beta 0"
            )
        self.check_and_tell()

    def fitted(self, dataset: Any, template: Any, model: Any, args: RLXConfig) -> Any:
        """The rows that can be trained. Raises ConfigError."""
        return startup.fit_prompts(dataset, template, model, args)

    def check_and_tell(self) -> None:
        """Refuse rewards without their columns, and log what will be trained. Raises ConfigError."""
        startup.check_columns(self.train_dataset, self.checked_rewards)
        startup.log_plan(self.train_dataset, self.args, self.args.group_baseline)
