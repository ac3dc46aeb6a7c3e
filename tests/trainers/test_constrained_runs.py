"""Real runs with --constraint_filter: what leaves the loss and keeps its denominator, and what loses reward."""

from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from answered_store import answered_group

from swift_rlx.store import StoredGroup, TrajectoryStore
from swift_rlx.trainers.offline_rloo import OfflineRLOOTrainer
from swift_rlx.trainers.stored_rows import reward_of
from swift_rlx.types import TrajectoryGroup

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SHORT, LONG = 5, 30
OPTIONS: dict[str, Any] = {
    "rlhf_type": "rloo",
    "num_train_epochs": 1,
    "max_steps": -1,
    "async_rollout": None,
    "num_generations": None,
    "learning_rate": 1e-3,
    "beta": 0.0,
}
LENGTHS = '{"constraints": ["length"], "lengths": [0.3, 2]}'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Groups of three short answers and a long one, of which the means are 11.25 tokens."""
    groups = []
    for number in range(8):
        short, long = (answered_group(number, 4, tokens=tokens).group for tokens in (SHORT, LONG))
        members = (*short.members[:3], long.members[3])
        groups.append(StoredGroup(TrajectoryGroup(short.prompt, number, members)))
    with TrajectoryStore.create(tmp_path / "s").writer("a") as writer:
        writer.add(groups)
        writer.seal()
    return tmp_path / "s"


def train(model: Path, store: Path, output: Path, **changes: Any) -> list[dict[str, Any]]:
    options = OPTIONS | {"constraint_settings": LENGTHS} | changes
    runs.train(model, store, output, **options)
    return [line for line in runs.log_lines(output) if "loss" in line]


@pytest.mark.parametrize("objective", ["rloo_is", "awac"])
def test_rejected_completions_do_not_train_and_keep_their_place_in_the_denominator(
    objective: str, tiny_model: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []
    compute = OfflineRLOOTrainer._compute_loss_and_metrics

    def watched(self: Any, model: Any, inputs: Any, batch: Any) -> Any:
        seen.append((self, batch))
        return compute(self, model, inputs, batch)

    monkeypatch.setattr(OfflineRLOOTrainer, "_compute_loss_and_metrics", watched)
    lines = train(
        tiny_model, store, tmp_path / "out", offline_objective=objective, constraint_filter="reject"
    )
    assert len(seen) == 8
    for trainer, batch in seen:
        tokens_B, trains_B = batch.completion_mask.sum(1), batch.loss_mask.any(1)
        assert tokens_B.tolist().count(LONG) == 1
        assert trains_B.tolist() == [count == SHORT for count in tokens_B.tolist()]
        if objective == "rloo_is":
            assert batch.normalizer == 8, "rows of the step, the rejected ones too"
            advantages_B = batch.advantages[:, 0].double()
            assert abs(advantages_B.sum().item()) < 1e-5, "its reward is in the baseline of the others"
            assert (advantages_B[~trains_B] != 0).all()
        else:
            assert trainer._stored_rows.valid_B.all()
            assert sorted(set(trainer._stored_rows.tokens_B.tolist())) == [SHORT, LONG]
    assert {line["constraints/rejected"] for line in lines} == {0.25}
    assert {line["constraints/length_passed"] for line in lines} == {0.75}
    assert not any("words_passed" in name or name == "constraints/penalty" for name in lines[0])


def test_a_penalty_is_taken_from_the_reward_of_what_does_not_hold_the_constraints(
    tiny_model: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[tuple[list[float], list[int]]] = []
    estimate = OfflineRLOOTrainer.estimate_advantages

    def watched(self: Any, rollout: Any) -> torch.Tensor:
        stored = torch.tensor([reward_of(place) for place in self._places])
        lost.append(((stored - rollout.rewards_N).tolist(), rollout.mask_nT.sum(1).tolist()))
        return estimate(self, rollout)

    monkeypatch.setattr(OfflineRLOOTrainer, "estimate_advantages", watched)
    lines = train(tiny_model, store, tmp_path / "out", constraint_filter="penalty:0.5")
    assert len(lost) == 4
    for found, tokens in lost:
        assert found == pytest.approx([0.5 if count == LONG else 0.0 for count in tokens])
    assert {line["constraints/penalty"] for line in lines} == {0.125}
    assert {line["reward"] for line in lines} == {1.375}, "1.5 in the store"
