"""Every strictly on-policy step: the ratio is 1, and no forward pass runs that the maths does not need."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import log_lines, train

from swift_rlx.errors import RewardError
from swift_rlx.trainers.batch import RLXBatch

pytestmark = pytest.mark.slow


class Lengths:
    """Reward by place in the group and text, so that groups have spread."""

    def __deepcopy__(self, memo: Any) -> "Lengths":
        return self

    def __call__(self, completions: list[str]) -> list[float]:
        return [index % 4 + len(set(text)) / 10 for index, text in enumerate(completions)]


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Log-prob passes of a run: 'policy', 'reference' or 'loss', in order."""
    from swift.rlhf_trainers import GRPOTrainer

    kinds: list[str] = []
    stock = GRPOTrainer._get_per_token_logps_and_entropies

    @functools.wraps(stock)  # the contract reads its parameters
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        kind = "loss" if torch.is_grad_enabled() else "reference" if self._in_reference else "policy"
        kinds.append(kind)
        return stock(self, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counted)
    return kinds


CASES = {
    "no KL": ({"rlhf_type": "rloo", "beta": 0.0}, {"loss"}),
    "KL in the loss": ({"rlhf_type": "reinforce_pp_baseline"}, {"reference", "loss"}),
    "KL in the reward": ({"rlhf_type": "rloo"}, {"policy", "reference", "loss"}),
    "several steps a batch": (
        {"rlhf_type": "rloo", "beta": 0.0, "steps_per_generation": 4},
        {"policy", "loss"},
    ),
    "several passes": ({"rlhf_type": "rloo", "beta": 0.0, "num_iterations": 2}, {"policy", "loss"}),
}


@pytest.mark.parametrize("case", CASES)
def test_only_the_forward_passes_that_are_needed_run(
    case: str, forwards: list[str], tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    changes, expected = CASES[case]
    train(tiny_model, write_rows(16), tmp_path / "run", reward_funcs=[Lengths()], **changes)
    assert set(forwards) == expected
    assert forwards.count("loss") == 4  # two steps of two micro-batches


@pytest.mark.parametrize("rlhf_type", ["rloo", "reinforce_pp", "reinforce_pp_baseline"])
def test_the_first_ratio_is_one_with_dropout_in_the_adapter(
    rlhf_type: str,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from swift_rlx.trainers.policy_gradient import PolicyGradientTrainer

    gaps: list[float] = []
    stock = PolicyGradientTrainer._compute_loss_and_metrics

    def compare(self: Any, model: Any, model_inputs: Any, grpo_batch: RLXBatch) -> Any:
        if self.state.global_step == 0:
            now = self._get_per_token_logps_and_entropies(model, dict(model_inputs), grpo_batch)[0]
            gap = (now - grpo_batch.old_per_token_logps).abs() * grpo_batch.completion_mask
            gaps.append(gap.max().item())
        return stock(self, model, model_inputs, grpo_batch)

    monkeypatch.setattr(PolicyGradientTrainer, "_compute_loss_and_metrics", compare)
    changes = {"lora_dropout": 0.5, "num_iterations": 2, "temperature": 0.7}
    train(
        tiny_model, write_rows(16), tmp_path / "run", rlhf_type=rlhf_type, reward_funcs=[Lengths()], **changes
    )
    assert gaps
    assert max(gaps) < 1e-5


def test_one_completion_a_prompt_learns_with_reinforce_pp(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    for baseline in ("none", "ema"):
        train(
            tiny_model,
            write_rows(16),
            tmp_path / baseline,
            rlhf_type="reinforce_pp",
            group_baseline=baseline,
            num_generations=1,
            reward_funcs=[Lengths()],
        )
        assert all(line["grad_norm"] > 0 for line in log_lines(tmp_path / baseline) if "grad_norm" in line)


def test_an_unscored_row_neither_trains_nor_biases_its_siblings(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift_rlx.trainers import RLOOTrainer

    batches: list[RLXBatch] = []
    stock = RLOOTrainer._compute_loss_and_metrics

    def keep(self: Any, model: Any, model_inputs: Any, grpo_batch: RLXBatch) -> Any:
        batches.append(grpo_batch)
        return stock(self, model, model_inputs, grpo_batch)

    monkeypatch.setattr(RLOOTrainer, "_compute_loss_and_metrics", keep)

    def reward(completions: list[str]) -> list[float | None]:
        return [1.0, None, 0.0, 1.0] * (len(completions) // 4)

    train(tiny_model, write_rows(16), tmp_path / "run", rlhf_type="rloo", beta=0.0, reward_funcs=[reward])
    assert batches[0].advantages[:, 0].tolist() == [0.5, 0.0, -1.0, 0.5]
    assert batches[0].loss_mask.any(1).tolist() == [True, False, True, True]
    assert batches[0].normalizer.item() == 6  # three of four rows in each of the step's two micro-batches
    assert log_lines(tmp_path / "run")[0]["rows/unscored"] == 0.25


def test_the_reward_is_clipped_before_the_baseline(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    def reward(completions: list[str]) -> list[float]:
        return [100.0, -100.0, 0.0, 0.0] * (len(completions) // 4)

    for clip, expected in ((None, 0.0), (3.0, 0.0)):
        changes = {"rlhf_type": "rloo", "reward_clip": clip, "reward_funcs": [reward]}
        train(tiny_model, write_rows(16), tmp_path / str(clip), **changes)
        line = log_lines(tmp_path / str(clip))[0]
        assert line["reward"] == pytest.approx(expected)
        assert line["reward_std"] == pytest.approx((clip or 100.0) / 2**0.5, rel=1e-5)


def test_gamma_and_the_baseline_change_what_is_trained(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    norms = {}
    for name, changes in {
        "default": {},
        "gamma": {"gamma": 0.5},
        "ema": {"group_baseline": "ema"},
        "slower ema": {"group_baseline": "ema", "ema_baseline_decay": 0.5},
    }.items():
        train(
            tiny_model,
            write_rows(16),
            tmp_path / name,
            rlhf_type="reinforce_pp",
            reward_funcs=[Lengths()],
            max_steps=3,
            **changes,
        )
        norms[name] = tuple(line["grad_norm"] for line in log_lines(tmp_path / name) if "grad_norm" in line)
    assert len(set(norms.values())) == len(norms)


def test_a_run_says_what_it_trains(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from swift.utils import get_logger

    get_logger().propagate = True
    try:
        train(tiny_model, write_rows(17), tmp_path / "run", rlhf_type="rloo", reward_funcs=[Lengths()])
    finally:
        get_logger().propagate = False
    assert "baseline loo, KL 0.05 as k1 in the reward, no reward clip" in caplog.text
    assert "a generation batch is 2 prompts = 8 completions" in caplog.text
    assert "1 prompts of the last incomplete one are left out" in caplog.text


def test_a_run_in_which_nothing_can_be_learned_says_so_and_ends(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from swift.utils import get_logger

    def unscored(completions: list[str]) -> list[None]:
        return [None] * len(completions)

    changes = {"rlhf_type": "rloo", "beta": 0.0, "temperature": 1e-6, "max_steps": 20}
    get_logger().propagate = True
    try:
        with pytest.raises(RewardError, match="10 generation batches in a row had no token to train on"):
            train(tiny_model, write_rows(16), tmp_path / "run", reward_funcs=[unscored], **changes)
    finally:
        get_logger().propagate = False
    assert "all 4 completions of each prompt of this generation batch are the same tokens" in caplog.text
    assert len([line for line in log_lines(tmp_path / "run") if "loss" in line]) == 9


def test_the_running_mean_is_subtracted_whole_under_a_discount(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A = G - V: discounting V with the reward would make a baseline of the completion's length."""
    from swift_rlx.trainers import ReinforcePPTrainer

    kept: list[torch.Tensor] = []
    stock = ReinforcePPTrainer.estimate_advantages

    def keep(self: Any, rollout: Any) -> torch.Tensor:
        kept.append(stock(self, rollout) * rollout.mask_nT)
        return kept[-1]

    monkeypatch.setattr(ReinforcePPTrainer, "estimate_advantages", keep)

    def one(completions: list[str]) -> list[float]:
        return [1.0] * len(completions)

    changes = {"rlhf_type": "reinforce_pp", "group_baseline": "ema", "gamma": 0.5, "beta": 0.0}
    train(tiny_model, write_rows(16), tmp_path / "run", reward_funcs=[one], **changes)
    row = kept[1][0]  # V is 1 from the first batch on; six tokens, the reward at the last
    assert row.tolist() == pytest.approx([0.5**steps - 1 for steps in range(5, -1, -1)])


def test_a_column_named_teacher_prompt_starts_no_distillation(
    forwards: list[str], tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"Say {row}"}], "teacher_prompt": "Say it", "row": row}
        for row in range(16)
    ]
    train(
        tiny_model, write_rows(rows), tmp_path / "run", rlhf_type="rloo", beta=0.0, reward_funcs=[Lengths()]
    )
    assert set(forwards) == {"loss"}
