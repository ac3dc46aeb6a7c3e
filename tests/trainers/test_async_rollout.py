"""Real runs on the asynchronous pipeline: whatever the schedule, each prompt once, no token over the bound."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs
from pipeline_runs import PickedUp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 12
Rows = Callable[..., Path]


@pytest.fixture
def rows(write_rows: Rows) -> Path:
    return write_rows(
        [{"messages": [{"role": "user", "content": f"say {number}"}]} for number in range(PROMPTS)]
    )


@pytest.fixture
def picked_up(monkeypatch: pytest.MonkeyPatch) -> PickedUp:
    return PickedUp(monkeypatch)


def logged(output: Path, name: str) -> list[float]:
    return [float(line[name]) for line in runs.log_lines(output) if name in line]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"steps_per_generation": 4, "max_steps": 12}, id="two steps a batch"),
        pytest.param(
            {"steps_per_generation": 1, "max_steps": 6, "tuner_type": "full", "learning_rate": 1e-3},
            id="two batches a step, full",
        ),
        pytest.param({"num_iterations": 2, "max_steps": 24}, id="each batch twice"),
        pytest.param({"max_staleness": 1, "train_order": "admission"}, id="admission"),
        pytest.param(
            {
                "rlhf_type": "reinforce_pp",
                "num_generations": 1,
                "rollout_workers": 2,
                "weight_update": "drain",
            },
            id="one answer a prompt, two workers, drain",
        ),
    ],
)
def test_every_prompt_trains_once_an_epoch_and_no_token_over_the_bound(
    changes: dict[str, Any], tiny_model: Path, rows: Path, tmp_path: Path, picked_up: PickedUp
) -> None:
    trainer = pipeline_runs.train(tiny_model, rows, tmp_path / "out", **({"max_steps": 12} | changes))

    trained = Counter(picked_up.prompts())
    assert set(trained.values()) == {1}, "a prompt was trained twice in an epoch"
    of_epoch = Counter(epoch for epoch, _ in trained)
    batch = trainer.args.generation_batch_size // trainer.num_generations
    whole = PROMPTS // batch * batch
    picked = len(picked_up.batches) * batch
    assert picked % whole == 0, "the run is long enough for whole epochs"
    assert of_epoch == dict.fromkeys(range(picked // whole), whole), "a prompt is missing"
    bound = trainer.args.max_staleness
    assert max(picked_up.staleness()) <= bound
    assert picked_up.staleness()[0] > 0
    assert trainer.pipeline is None, "the pipeline has to end with the training"
    ratio = logged(tmp_path / "out", "offpolicy/max_log_ratio")
    assert ratio[0] < 1e-3, "the first batch is made by the weights that train it"


def test_in_the_order_of_admission_latencies_and_evaluation_leave_the_sequence_alone(
    tiny_model: Path, rows: Path, write_rows: Rows, tmp_path: Path, picked_up: PickedUp
) -> None:
    def sequence(name: str, **changes: Any) -> list[tuple[int, int]]:
        picked_up.batches.clear()
        pipeline_runs.train(
            tiny_model, rows, tmp_path / name, train_order="admission", max_steps=8, **changes
        )
        return picked_up.prompts()

    one_worker = sequence("one")
    assert len(one_worker) == 16
    assert sequence("two", rollout_workers=2) == one_worker
    held_out = write_rows(5, "held_out.jsonl")
    evaluating = sequence(
        "evaluating",
        val_dataset=[str(held_out)],
        eval_strategy="steps",
        eval_steps=2,
        eval_on_start=True,
        per_device_eval_batch_size=4,
    )
    assert evaluating == one_worker
    evaluated = logged(tmp_path / "evaluating", "eval_reward")
    assert len(evaluated) == 5, "before the first step, and after steps 2, 4, 6 and 8"
    assert len(set(evaluated)) > 1, "the evaluated weights move"


def test_groups_without_spread_are_replaced(
    tiny_model: Path, write_rows: Rows, tmp_path: Path, picked_up: PickedUp
) -> None:
    data = write_rows(
        [{"messages": [{"role": "user", "content": f"say {n}"}], "flat": n % 2} for n in range(PROMPTS)]
    )
    pipeline_runs.train(
        tiny_model, data, tmp_path / "out",
        dynamic_sample=True, max_resample_times=20, reward_funcs=["flat_or_vowels"], max_steps=4,
    )  # fmt: skip

    rewards = [[row.rewards[0] for row in batch.rows] for batch in picked_up.batches]
    groups = [values[at : at + 4] for values in rewards for at in range(0, len(values), 4)]
    assert len(groups) == 8
    assert all(len(set(group)) > 1 for group in groups)
