"""The base of all our trainers: strictly on-policy, evaluated on every row once, resumed without loss."""

from typing import Any

from swift_rlx.integration.algorithm_table import resolve
from swift_rlx.trainers import startup
from swift_rlx.trainers.evaluation import EvaluationMixin
from swift_rlx.trainers.policy_gradient import PolicyGradientTrainer
from swift_rlx.trainers.resume import ResumeMixin


class OnPolicyTrainer(ResumeMixin, EvaluationMixin, PolicyGradientTrainer):
    """Each generation batch is sampled by the weights that its first optimizer step starts from."""

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        config, template = kwargs["args"], kwargs["template"]
        kwargs["train_dataset"] = startup.fit_prompts(kwargs["train_dataset"], template, model, config)
        startup.check_rows(kwargs["train_dataset"], config)
        self.min_group_size = resolve(config.rlx_type).min_generations
        super().__init__(model, *args, **kwargs)
        startup.check_columns(self.train_dataset, self.checked_rewards)
        startup.log_plan(self.train_dataset, config, config.group_baseline)
