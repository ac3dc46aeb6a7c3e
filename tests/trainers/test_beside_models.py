"""Reward models of `--reward_model` score beside the training, never in its thread."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pipeline_runs
import pytest
import torch
from group_scorers import Encoder, score
from peft import LoraConfig, get_peft_model
from tiny_reward_model import save_reward_model, scores
from transformers import LlamaForSequenceClassification

from swift_rlx.integration.fields import FIELD_DEFAULTS
from swift_rlx.integration.run_reward_model import AskedModel, digest_of_weights
from swift_rlx.rewards import OnError
from swift_rlx.trainers.beside_models import devices_of, rewards_beside
from swift_rlx.trainers.group_scoring import GroupScorer, is_of_groups
from swift_rlx.trainers.reward_crew import RewardCrew

WITNESS = Path(__file__).parents[1] / "support" / "asked_by.py"


def trainer_of(crew: RewardCrew, plugin: Any, **changes: Any) -> Any:
    """What is read of a trainer with one reward model on a card."""
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path="org/scorer"))
    values = {
        "args": SimpleNamespace(**FIELD_DEFAULTS),
        "accelerator": SimpleNamespace(device=torch.device("cuda", 0)),
        "is_deepspeed_enabled": False,
        "is_fsdp_enabled": False,
        "reward_crew": crew,
        "checked_rewards": [],
        "reward_funcs": [model],
        "reward_keys": ["scorer"],
        "reward_model_plugins": [AskedModel(plugin)],
    }
    return SimpleNamespace(**values | changes)


@pytest.fixture
def crew() -> Iterator[RewardCrew]:
    made = RewardCrew([], on_error=OnError.parse("raise"))
    made.watch()
    yield made
    made.close()


def test_a_model_on_the_card_of_the_training_is_asked_in_a_thread_with_whole_rows(crew: RewardCrew) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def plugin(inputs: list[dict[str, Any]], **columns: Any) -> torch.Tensor:
        assert columns["solution"] == ["42"] * len(inputs), "as ms-swift calls it"
        asked.extend((threading.current_thread().name, row) for row in inputs)
        return torch.arange(len(inputs), dtype=torch.float32)

    beside = rewards_beside(trainer_of(crew, plugin))
    scorer = GroupScorer(beside, Encoder(), SimpleNamespace(global_step=3))
    assert (scorer.late, is_of_groups(beside[0])) == (set(), True)
    parts = [one.breakdown for one in score(scorer)]

    assert [(part.name, part.value, part.version) for [part] in parts] == [
        ("scorer", 0.0, "model:org/scorer"),
        ("scorer", 1.0, "model:org/scorer"),
    ]
    assert {name for name, _ in asked} == {"reward scorer"}
    assert [row["messages"][-1]["content"][-4:] for _, row in asked] == ["42}$", "41}$"]
    assert all("trainer_state" not in row for _, row in asked)


@pytest.mark.parametrize("engine", ["is_deepspeed_enabled", "is_fsdp_enabled"])
def test_a_model_that_all_ranks_ask_together_is_late(engine: str, crew: RewardCrew) -> None:
    beside = rewards_beside(trainer_of(crew, None, **{engine: True}))
    assert beside == [None]
    assert GroupScorer(beside, Encoder(), None).late == {0}
    assert crew.models == []


def test_models_share_the_reward_devices_evenly() -> None:
    assert [devices_of(at, 2, "4,5,6,7") for at in range(2)] == [("4", "5"), ("6", "7")]
    assert [devices_of(at, 3, "4, 5") for at in range(3)] == [("4",), ("5",), ("4",)]
    assert devices_of(0, 1, None) == ()


def test_another_weight_is_another_digest() -> None:
    model = torch.nn.Linear(3, 5000)
    before = digest_of_weights(model)
    assert digest_of_weights(model.to(torch.float64).to(torch.float32)) == before
    with torch.no_grad():
        model.bias[-1] += 1.0
    assert digest_of_weights(model) != before
    assert digest_of_weights(model.to(torch.float64)) != before


def test_two_threads_ask_a_model_one_after_the_other() -> None:
    inside, at_once = threading.Semaphore(1), []

    def plugin(inputs: list[Any], **columns: Any) -> list[float]:
        at_once.append(not inside.acquire(blocking=False))
        started.wait(0.05)
        inside.release()
        return [0.0]

    started, asked = threading.Event(), AskedModel(plugin)
    threads = [threading.Thread(target=asked.score, args=(["a"],)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at_once == [False] * 3


# --- real runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[dict[str, Any]], list[list[str]]]]:
    """Trains in the pipeline; gives the tables of completions, and who asked the models."""
    monkeypatch.setenv("ASKED_BY", str(tmp_path / "asked"))

    def run(**options: Any) -> tuple[list[dict[str, Any]], list[list[str]]]:
        models = len(options["reward_model"])
        pipeline_runs.train(
            tiny_model, write_rows(24), tmp_path / "run",
            external_plugins=[str(pipeline_runs.PLUGIN), str(WITNESS)],
            reward_model_type=["llama"] * models, reward_template=["chatml"] * models,
            reward_model_plugin=["asked_by"] * models, log_completions=True, **options,
        )  # fmt: skip
        tables = (tmp_path / "run" / "completions.jsonl").read_text(encoding="utf-8").splitlines()
        asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
        return [json.loads(table) for table in tables], [line.split(",") for line in asked]

    return run


@pytest.mark.slow
@pytest.mark.versions
def test_two_models_of_one_name_score_each_in_a_process_of_its_own_what_they_score_here(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    models = [save_reward_model(tmp_path / str(seed) / "scorer", seed) for seed in (3, 4)]
    tables, asked = train(
        reward_model=list(map(str, models)), reward_funcs=["vowels"], reward_weights=[1.0, 2.0, 3.0],
        beta=0.0, dynamic_sample=True, max_steps=4,
    )  # fmt: skip

    processes = {process for process, _, _ in asked}
    assert len(processes) == 2
    assert str(os.getpid()) not in processes, "not in the training's process, so in none of its threads"
    assert {rows for _, _, rows in asked} == {"4"}, "a group as soon as it is there"
    assert len(tables) >= 4
    lines = [json.loads(line) for line in (tmp_path / "run" / "logging.jsonl").read_text().splitlines()]
    for table, line in zip(tables[:4], lines[:4], strict=True):
        own = [scores(model, table) for model in models]
        vowels = [sum(a in "aeiou" for a in text) / max(1, len(text)) for text in table["completion"]]
        expected = [one + 2 * two + 3 * three for one, two, three in zip(vowels, own[0], own[1], strict=True)]
        assert line["reward"] == pytest.approx(sum(expected) / len(expected), abs=1e-4)
        assert line["reward/scorer/failures"] == line["reward/scorer#2/failures"] == 0.0


@pytest.mark.slow
def test_a_model_with_an_adapter_scores_in_a_thread_beside_the_training(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    folder = save_reward_model(tmp_path / "scorer")
    torch.manual_seed(0)
    adapted: Any = get_peft_model(
        LlamaForSequenceClassification.from_pretrained(folder),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="SEQ_CLS"),
    )
    adapted.save_pretrained(tmp_path / "adapter")
    merged = save_reward_model(tmp_path / "merged")
    adapted.merge_and_unload().save_pretrained(merged)
    tables, asked = train(
        reward_model=[str(folder)], reward_adapters=[str(tmp_path / "adapter")], reward_funcs=[], max_steps=3
    )

    assert {process for process, _, _ in asked} == {str(os.getpid())}
    assert {thread for _, thread, _ in asked} == {"reward scorer"}
    for table in tables:
        assert table["scorer"] == pytest.approx(scores(merged, table), abs=1e-4)
        assert table["scorer"] != pytest.approx(scores(folder, table), abs=1e-3)
