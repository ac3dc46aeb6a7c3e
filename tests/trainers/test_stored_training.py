"""Real runs on fresh batches and on groups of their store: the schedule, what is stored, and the gradient of a fill."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pipeline_runs
import pytest
import runs
import torch
from pipeline_runs import ASYNC, PLUGIN, PickedUp

from swift_rlx.store import Snapshot, TrajectoryStore
from swift_rlx.trainers import hybrid_run, stored_prompts
from swift_rlx.trainers.group_scoring import GroupScorer
from swift_rlx.trainers.rollout_rows import Origin
from swift_rlx.trainers.stored_batches import UNKNOWN_AGE
from swift_rlx.trainers.stored_training import StoredTrainingMixin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
PROMPTS, GROUP_SIZE = 12, 4
Rows = Callable[..., Path]


@pytest.fixture
def rows(write_rows: Rows) -> Path:
    return write_rows(
        [{"messages": [{"role": "user", "content": f"say {number}"}]} for number in range(PROMPTS)]
    )


@pytest.fixture
def picked_up(monkeypatch: pytest.MonkeyPatch) -> PickedUp:
    return PickedUp(monkeypatch)


def answers(snapshot: Snapshot) -> Counter[tuple[Any, ...]]:
    """What the store has: prompt, member and token ids of each answer."""
    return Counter(
        (one.prompt.epoch, one.prompt.index, one.member, one.completion.token_ids.tobytes())
        for stored in snapshot.groups(range(snapshot.num_groups))
        for one in stored.group.members
    )


def fresh_answers(picked_up: PickedUp) -> Counter[tuple[Any, ...]]:
    return Counter(
        (row.epoch, row.index, row.member, row.token_ids)
        for batch in picked_up.batches
        if batch.origin is Origin.FRESH
        for row in batch.rows
        if not row.is_filler
    )


def test_every_second_batch_is_stored_and_the_store_has_what_was_generated_once(
    tiny_model: Path, rows: Path, tmp_path: Path, picked_up: PickedUp
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    pipeline_runs.train(
        tiny_model, rows, output, trajectory_store=str(store), offline_ratio=0.5, max_steps=8, ess_gate=True
    )

    origins = [batch.origin for batch in picked_up.batches]
    assert origins == [Origin.FRESH, Origin.STORED] * 4
    snapshot = TrajectoryStore.open(store).snapshot()
    assert answers(snapshot) == fresh_answers(picked_up)
    assert snapshot.num_groups == 8, "two prompts a fresh batch"
    fresh = {(row.index, row.member): row for b in picked_up.batches[::2] for row in b.rows}
    assert len(fresh) == 8 * GROUP_SIZE, "a stored batch takes no prompt of the data"
    uses: Counter[int] = Counter()
    for batch in picked_up.batches[1::2]:
        uses.update({row.index for row in batch.rows})
        for row in batch.rows:
            before = fresh[row.index, row.member]
            assert row.token_ids == before.token_ids
            assert row.reward == pytest.approx(before.rewards[0])
            assert row.behavior_logprobs() == pytest.approx(before.behavior_logprobs(), rel=1e-3)
            assert max(np.frombuffer(row.staleness, "<i4")) <= batch.step
    assert len(uses) == 8, "those that trained least come first"
    [group] = list(snapshot.groups([0]))
    assert group.group.prompt.columns["messages"][0]["content"].startswith("say ")
    assert group.engine == "transformers"
    assert group.recipe.startswith("weighted: 1*vowels@")
    assert len(group.texts) == GROUP_SIZE

    last = [line for line in runs.log_lines(output) if "store/stored_batches" in line][-1]
    assert (last["store/fresh_batches"], last["store/stored_batches"]) == (4, 4)
    assert last["store/lacking_batches"] == 0
    assert last["store/tokens_generated"] > 0
    shown = {name for line in runs.log_lines(output) for name in line}
    assert {"stored/reward", "offpolicy/stored/ess_seq", "offpolicy/stored/batches_skipped"} <= shown


def reference(trainer: Any, batch: Any) -> torch.Tensor:
    """-(1 / rows of the step) sum of w A d log p, with w the truncated product of the ratios: row by row."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    parameters = [each for each in model.parameters() if each.requires_grad]
    total = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
    for first in range(0, len(batch.rows), GROUP_SIZE):
        group = batch.rows[first : first + GROUP_SIZE]
        columns = json.loads(batch.prompts[first // GROUP_SIZE])
        prompt = trainer.encoder.prompt(columns, 0, 0).token_ids.tolist()
        rewards = [row.reward for row in group]
        for row in group:
            others = (sum(rewards) - row.reward) / (GROUP_SIZE - 1)
            ids = torch.tensor([prompt + row.tokens()])
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            logprobs = (
                (logits / trainer.temperature)
                .log_softmax(-1)
                .gather(1, torch.tensor(row.tokens())[:, None])[:, 0]
            )
            ratio = math.exp(float(logprobs.detach().double().sum()) - sum(row.behavior_logprobs()))
            loss = -min(ratio, 2.0) * (row.reward - others) * logprobs.sum()
            for each, found in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                each += found.double()
    rows_of_step = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps
    return torch.cat([each.flatten() for each in total]) / rows_of_step


def gradient(trainer: Any) -> torch.Tensor:
    """What has been added up so far."""
    each = [one for one in trainer.model.parameters() if one.requires_grad]
    grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in each]
    return torch.cat([one.flatten() for one in grads]).double()


def watch_fills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Of each fill the norm of the gradient that it should add, and how far off what it adds is."""
    found: list[tuple[float, float]] = []
    train_fill = StoredTrainingMixin._train_fill

    def watched(self: Any, samples: Any) -> None:
        expected, before = reference(self, self._picked), gradient(self)
        train_fill(self, samples)
        found.append((float(expected.norm()), float((gradient(self) - before - expected).norm())))

    monkeypatch.setattr(StoredTrainingMixin, "_train_fill", watched)
    return found


def make_scores_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = GroupScorer._scores

    async def slow(self: Any, *args: Any) -> Any:
        await asyncio.sleep(0.5)
        return await scores(self, *args)

    monkeypatch.setattr(GroupScorer, "_scores", slow)


def test_stored_groups_join_the_step_that_waits_with_the_gradient_that_they_should_have(
    tiny_model: Path, write_rows: Rows, tmp_path: Path, picked_up: PickedUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores take a while, and groups of an earlier run fill the waits; rewards differ by the lengths of answers."""
    messages = [[{"role": "user", "content": f"say {number}"}] for number in range(PROMPTS)]
    rows = write_rows([{"flat": 0, "messages": one} for one in messages])
    same = {
        "trajectory_store": str(tmp_path / "store"),
        "reward_funcs": ["flat_or_vowels"],
        "max_steps": 3,
    }
    # The learning rate makes a policy of the first run that the second one is far from.
    pipeline_runs.train(tiny_model, rows, tmp_path / "first", learning_rate=0.1, **same)
    picked_up.batches.clear()
    compare, compared = stored_prompts.warn_of_other_prompts, []
    monkeypatch.setattr(hybrid_run, "warn_of_other_prompts", lambda *both: compared.append(compare(*both)))
    make_scores_slow(monkeypatch)
    added = watch_fills(monkeypatch)
    pipeline_runs.train(tiny_model, rows, tmp_path / "second", fill_the_wait=True, beta=0.0, **same)

    assert compared == [[]], "the prompts of the first run are what the second one makes of their messages"
    fills = [batch for batch in picked_up.batches if batch.origin is Origin.FILL]
    assert len(fills) == len(added) > 0
    assert all(len(batch.rows) == GROUP_SIZE for batch in fills), "a part of a generation batch"
    assert max(size for size, _ in added) > 1e-3
    assert all(off <= 1e-4 * size + 1e-9 for size, off in added)
    of_other_run = np.frombuffer(picked_up.batches[0].rows[0].staleness, "<i4")
    assert set(of_other_run.tolist()) == {UNKNOWN_AGE}
    fresh = [batch.step for batch in picked_up.batches if batch.origin is Origin.FRESH]
    assert fresh == [0, 1, 2], "one optimizer step for each fresh batch, and no other"
    lines = runs.log_lines(tmp_path / "second")
    assert [line["store/fills"] for line in lines if "store/fills" in line][-1] == len(fills)
    assert "stored/reward" in lines[0]


def test_two_ranks_go_on_after_a_crash_and_their_store_has_nothing_twice(
    tiny_model: Path, rows: Path, tmp_path: Path
) -> None:
    """With fills, whose number is a matter of time: those behind the checkpoint come again in their places."""
    store, plugins = tmp_path / "store", [str(PLUGIN), str(PLUGIN.with_name("trained_plugin.py"))]
    changes = ASYNC | {
        "rlhf_type": "rloo",
        "external_plugins": plugins,
        "max_steps": 8,
        "ddp_backend": "gloo",
    }
    changes |= {"offline_ratio": 0.5, "trajectory_store": str(store), "fill_the_wait": True}
    changes |= {"save_strategy": "steps", "save_steps": 3}

    def run(name: str, environment: dict[str, str], **more: Any) -> tuple[Any, dict[int, Any]]:
        options, log = (
            runs.arguments(tiny_model, rows, tmp_path / name, **changes | more),
            tmp_path / f"{name}.log",
        )
        result = runs.swift(options, TRAINED_LOG=str(log), NPROC_PER_NODE="2", **environment)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return result, {line["step"]: line for line in lines if line["rank"] == 0}

    result, first = run("first", {"KILL_AT": "5"})
    assert result.returncode != 0
    saved = str(tmp_path / "first" / "checkpoint-3")
    result, second = run("second", {}, resume_from_checkpoint=saved, save_strategy="no")
    assert result.returncode == 0, result.stderr[-3000:]

    assert set(second) == set(range(3, 8))
    again = [step for step in first if step >= 3]
    assert {3, 4} <= set(again)
    assert [second[step]["content"] for step in again] == [first[step]["content"] for step in again]
    lineage = {step: line for step, line in first.items() if step < 3} | second
    fresh = Counter(prompt for step in range(0, 8, 2) for prompt in lineage[step]["prompts"])
    assert len(fresh) == 16
    assert set(fresh.values()) == {1}
    snapshot = TrajectoryStore.open(store).snapshot()
    kept = [stored.group.prompt for stored in snapshot.groups(range(snapshot.num_groups))]
    assert Counter(f"{one.epoch}/{one.index}" for one in kept) == fresh
    assert list(snapshot.manifest.sealed.values()) == [3], "one name, and a round for each fresh batch"
    stored = [set(lineage[step]["prompts"]) for step in range(1, 8, 2)]
    assert set().union(*stored) <= set(fresh)
