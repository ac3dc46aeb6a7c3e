"""The offline objectives in a trainer: gradients of any split are those of the objective's own formula in float64."""

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from swift_rlx.algorithms.offline import MicroBatch, StoredRows
from swift_rlx.algorithms.offline.objective_settings import DEFAULT_BETA, objective_with
from swift_rlx.errors import CheckpointError
from swift_rlx.trainers.batch import RLXBatch, Rollout
from swift_rlx.trainers.objective_loss import ObjectiveLossMixin

ROWS, PROMPT, WIDTH, VOCABULARY = 8, 3, 4, 11
TEMPERATURE = 0.7


def tiny(seed: int) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).double()


class Stored:
    """Eight completions of three prompts, two of them cut short and one without a reward."""

    ids = torch.randint(VOCABULARY, (ROWS, PROMPT + WIDTH), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(WIDTH) < torch.tensor([4, 2, 3, 4, 4, 1, 4, 3])[:, None]
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    valid = torch.arange(ROWS) != 2
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.25, 0.5, 1.5, 2.0, 0.0], dtype=torch.float64)
    scores = torch.stack([rewards, torch.tensor([0.0, 1, 0, 1, 0, 2, 1, 0], dtype=torch.float64)], dim=1)


class Base:
    """What the mixin builds on."""

    def __init__(self, model: Any, per_micro_batch: int, ranks: int) -> None:
        self.model, self.ref_model, self.temperature = model, tiny(9), TEMPERATURE
        self.accelerator = SimpleNamespace(num_processes=ranks)
        steps = ROWS // per_micro_batch
        self.args = SimpleNamespace(steps_per_generation=steps, gradient_checkpointing_kwargs=None)
        self.state = SimpleNamespace(global_step=3, max_steps=10)
        self.compute_entropy, self.model_kwarg_keys = False, {"logits_to_keep", "use_cache"}
        self._metrics: Any = {"train": defaultdict(list)}
        self.null_ref_context = nullcontext

    def _attach(self, encoded: Any, batches: Any, advantages: Any, loss_mask: Any) -> None:
        masks = loss_mask.split(ROWS // len(encoded))
        for entry, mask in zip(encoded, masks, strict=True):
            entry["grpo_batch"] = RLXBatch(mask, ~mask[:, 0], mask.sum(1), loss_mask=mask)

    def _get_per_token_logps_and_entropies(self, model: Any, inputs: Any, batch: Any, **_: Any) -> Any:
        logits = model(**inputs).logits[:, -WIDTH - 1 : -1] / TEMPERATURE
        return logits.log_softmax(-1).gather(-1, inputs["input_ids"][:, -WIDTH:, None])[..., 0], None

    @staticmethod
    def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
        return values

    def algorithm_state(self) -> dict[str, Any]:
        return {}

    def load_algorithm_state(self, state: dict[str, Any]) -> None:
        pass


class Trainer(ObjectiveLossMixin, Base):
    def __init__(self, name: str, *, per_micro_batch: int = 2, ranks: int = 1, settings: Any = None) -> None:
        super().__init__(tiny(1).train(), per_micro_batch, ranks)
        self.objective_name = name
        self.objective = objective_with(name, settings or {}, DEFAULT_BETA[name])

    def source_scores(self) -> torch.Tensor:
        return Stored.scores

    def begin(self) -> list[dict[str, Any]]:
        rollout = Rollout(
            rewards_N=Stored.rewards.float(),
            valid_N=Stored.valid,
            group_ids_N=Stored.groups,
            rows=slice(0, ROWS),
            mask_nT=Stored.mask,
            proximal_logprobs_nT=None,
            ref_logprobs_nT=None,
            gather=lambda values: values,
            reduce_sum=lambda values: values,
            is_training=True,
        )
        encoded = [
            {"model_inputs": {"input_ids": ids}, "grpo_batch": None}
            for ids in Stored.ids.split(ROWS // self.args.steps_per_generation)
        ]
        advantages = self.estimate_advantages(rollout)
        assert not advantages.any()
        self._attach(encoded, [], advantages, Stored.mask & Stored.valid[:, None])
        return encoded

    def gradients(self, encoded: list[dict[str, Any]]) -> list[torch.Tensor]:
        """Of the optimizer step, as the Trainer and DDP take the means."""
        for entry in encoded:
            loss, _ = self._compute_loss_and_metrics(self.model, entry["model_inputs"], entry["grpo_batch"])
            (loss / len(encoded) / self.accelerator.num_processes).backward()
        return [each.grad for each in self.model.parameters()]


def reference(name: str, settings: Any = None) -> tuple[list[torch.Tensor], dict[str, float]]:
    """Gradients and metrics of the whole batch at once."""
    model, frozen = tiny(1), tiny(9)

    def logits(of: Any) -> torch.Tensor:
        return of(input_ids=Stored.ids).logits[:, PROMPT - 1 : -1] / TEMPERATURE

    rows = StoredRows(
        Stored.groups,
        (Stored.mask & Stored.valid[:, None]).sum(1),
        Stored.valid,
        Stored.rewards,
        Stored.scores,
        0.3,
    )
    plan = objective_with(name, settings or {}, DEFAULT_BETA[name]).plan(rows)
    own, ids = logits(model), Stored.ids[:, PROMPT:]
    part = MicroBatch(
        torch.arange(ROWS),
        Stored.mask & Stored.valid[:, None],
        own.log_softmax(-1).gather(-1, ids[..., None])[..., 0],
        token_ids_bT=ids,
        logits_bTV=own,
        reference_logits_bTV=logits(frozen).detach(),
        target_logits_bTV=logits(frozen).detach(),
    )
    found = plan.loss(part)
    found.loss.backward()
    return [each.grad for each in model.parameters()], {**plan.metrics, **found.metrics}


@pytest.mark.parametrize("name", list(DEFAULT_BETA))
@pytest.mark.parametrize(("per_micro_batch", "ranks"), [(8, 1), (2, 1), (1, 2)])
def test_the_gradient_of_any_split_is_the_objectives_own(name: str, per_micro_batch: int, ranks: int) -> None:
    trainer = Trainer(name, per_micro_batch=per_micro_batch, ranks=ranks)
    found = trainer.gradients(trainer.begin())
    expected, metrics = reference(name)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    logged = {key: sum(values) / len(values) for key, values in trainer._metrics["train"].items()}
    assert logged == pytest.approx(metrics, rel=1e-5)


def test_a_setting_changes_the_gradient() -> None:
    trainer = Trainer("awac", settings={"temperature": 0.05})
    found = trainer.gradients(trainer.begin())
    expected, _ = reference("awac", {"temperature": 0.05})
    default, _ = reference("awac")
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found[0], default[0], rtol=1e-2)


def test_a_checkpoint_within_a_generation_batch_has_its_plan() -> None:
    begun = Trainer("awac")
    begun.objective.temperature.value = 0.01  # changes with the first batch
    encoded = begun.begin()
    resumed = Trainer("awac")
    resumed.load_algorithm_state(begun.algorithm_state())
    assert resumed.objective.state() == begun.objective.state()
    assert resumed.objective.state()["temperature"] not in (0.01, 1.0)
    for one, other in zip(begun.gradients(encoded), resumed.gradients(encoded), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_objective_is_refused() -> None:
    state = Trainer("awac").algorithm_state()
    with pytest.raises(CheckpointError, match="offline objective awac, this run's is cql; use the same"):
        Trainer("cql").load_algorithm_state(state)
