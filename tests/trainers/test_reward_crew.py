"""Where the rewards of a run score, and what its flags change; without a trainer."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import odd_rewards
import pytest
import torch

from swift_rlx.cluster.reward_pool import ProcessExecution
from swift_rlx.errors import RewardError
from swift_rlx.integration.fields import FIELD_DEFAULTS
from swift_rlx.integration.reward_names import described_rewards
from swift_rlx.rewards import REWARDS, CheckedReward, OnError, register_reward
from swift_rlx.rewards.execution import LoopExecution, ThreadExecution
from swift_rlx.trainers.reward_columns import RewardColumnsMixin
from swift_rlx.trainers.reward_crew import BesideReward, HereReward, RewardCrew

ROWS = ["1", "2"]
Make = Callable[..., RewardCrew]


@pytest.fixture
def crew_of() -> Iterator[Make]:
    made: list[RewardCrew] = []

    def make(*rewards: Any, args: Any = None, **settings: Any) -> RewardCrew:
        made.append(RewardCrew(described_rewards(list(rewards), args), on_error=OnError(), **settings))
        made[-1].watch()
        return made[-1]

    yield make
    for crew in made:
        crew.close()


def closure() -> Callable[..., Any]:
    return lambda completions, **columns: [float(text) for text in completions]


def test_a_reward_runs_where_it_can(crew_of: Make) -> None:
    class Safe:
        thread_safe = True

        def __call__(self, completion: str) -> float:
            return 1.0

    crew = crew_of(odd_rewards.each, "format", "accuracy", odd_rewards.each_async, Safe(), closure())
    kinds = [ProcessExecution] * 3 + [LoopExecution, ThreadExecution, ThreadExecution]
    runners = [one.runner for one in crew.rewards]
    assert [type(one.execution) for one in runners if one is not None] == kinds
    assert [type(one) for one in crew.rewards] == [BesideReward] * 5 + [HereReward]


def test_a_file_is_found_by_processes_and_the_program_itself_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REWARDS, "_registered", {})

    @register_reward("crew-here")
    def here(completion: str) -> float:
        return 1.0

    [reward] = described_rewards(["crew-here"], None)
    assert reward.origin is not None
    assert reward.origin.options["file"] == __file__
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    assert described_rewards(["crew-here"], None)[0].origin is None


@pytest.mark.slow  # the process imports ms-swift
def test_a_plugin_file_that_writes_into_ms_swifts_table_scores_in_a_process(
    crew_of: Make, tmp_path: Path
) -> None:
    from swift.rewards import orms
    from swift.utils import import_external_file

    plugin = tmp_path / "own_orm.py"
    plugin.write_text(
        "import os\n"
        "from swift.rewards import ORM, orms\n\n\n"
        "class Own(ORM):\n"
        "    def __call__(self, completions, **kwargs):\n"
        "        return [float(os.getpid()) + self.args.scale for _ in completions]\n\n\n"
        "orms['crew_own'] = Own\n",
        encoding="utf-8",
    )
    import_external_file(str(plugin))
    try:
        crew = crew_of("crew_own", args=SimpleNamespace(scale=0.5, model=object()))
        values = asyncio.run(crew.rewards[0](ROWS))
    finally:
        del orms["crew_own"]
    assert values[0] == values[1] != os.getpid() + 0.5
    assert values[0] % 1 == 0.5


def test_the_limit_and_the_number_of_processes_are_as_given(crew_of: Make) -> None:
    crew = crew_of(odd_rewards.each, limit_s=0.5, workers=1)
    assert crew.pool.size == 1
    assert asyncio.run(crew.rewards[0](["1", "hang"])) == [1.0, None]
    assert len(crew.pool.pids) == 1
    assert crew.rewards[0].take_counters().over_limit == 1
    assert crew_of(odd_rewards.each).pool.size >= 2


def test_processes_see_the_devices_that_they_are_given(crew_of: Make) -> None:
    def devices(crew: RewardCrew) -> str:
        assert asyncio.run(crew.rewards[0](["1"])) == [1.0]
        [pid] = crew.pool.pids
        variables = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
        return next((one for one in variables if one.startswith("CUDA_VISIBLE_DEVICES=")), "")

    assert devices(crew_of(odd_rewards.each, devices="7")) == "CUDA_VISIBLE_DEVICES=7"
    assert devices(crew_of(odd_rewards.each)) != "CUDA_VISIBLE_DEVICES=7"


def test_a_closed_crew_leaves_no_process_and_scores_again(crew_of: Make) -> None:
    crew = crew_of(odd_rewards.each)
    crew.submit_warm_up().result(60)
    [before] = crew.pool.pids
    crew.close()
    assert not Path(f"/proc/{before}").exists()
    assert asyncio.run(crew.rewards[0](["1"])) == [1.0]
    assert crew.pool.pids.isdisjoint({before})


def test_without_the_pipeline_an_alarm_in_a_thread_goes_to_the_main_thread(crew_of: Make) -> None:
    def limited(completion: str) -> float:
        return odd_rewards.limits_itself(completion)

    limited.thread_safe = True  # type: ignore[attr-defined]  # it says so, and is wrong
    crew = crew_of(limited)
    assert asyncio.run(crew.rewards[0](["1"])) == [1.0]
    assert isinstance(crew.rewards[0].here, CheckedReward)


# --- the columns of a trainer -----------------------------------------------------------------------------------------


class Base:
    """What of ms-swift's trainer the columns use."""

    def _prepare_rewards(self, reward_funcs: list[Any], models: Any = None, templates: Any = None) -> None:
        self.reward_funcs = reward_funcs
        self.reward_model_plugins = [None] * len(reward_funcs)
        self.reward_func_names = ["?"] * len(reward_funcs)
        self.reward_weights = torch.ones(len(reward_funcs))

    def _compute_rewards_per_func(self, samples: list[str]) -> torch.Tensor:
        async def one(reward: Any) -> list[float]:
            values = reward(samples)
            return await values if asyncio.iscoroutine(values) else values

        async def every() -> list[Any]:
            return await asyncio.gather(*map(one, self.reward_funcs))

        return torch.tensor(asyncio.run(every())).T


class Trainer(RewardColumnsMixin, Base):
    def __init__(self, *rewards: Any, **args: Any) -> None:
        self.args = SimpleNamespace(**FIELD_DEFAULTS | args)
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(device="cpu")
        self.num_generations = 2
        self._metrics: dict[str, Any] = {"train": {}, "eval": {}}
        self.baselines_restarted = 0
        self._prepare_rewards(list(rewards))

    def restart_reward_baseline(self) -> None:
        self.baselines_restarted += 1

    def record_failures(self, elsewhere: Any = None) -> None:
        """Not of interest here."""

    def batch(self, *texts: str) -> torch.Tensor:
        scores = self._compute_rewards_per_func(list(texts))
        return self.combine(scores, torch.arange(len(texts)) // 2, update=True).rewards_B


class Served:
    """A reward service; `changes`: versions that come with the calls."""

    name = "judge"

    def __init__(self, *changes: str) -> None:
        self.version, self.changes = "v3", list(changes)

    async def score(self, rows: Sequence[Any]) -> list[float | None]:
        if self.changes:
            self.version = self.changes.pop(0)
        return [float(row.completion) for row in rows]


@pytest.fixture
def trainer() -> Iterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def make(*rewards: Any, **args: Any) -> Trainer:
        made.append(Trainer(*rewards, **args))
        return made[-1]

    yield make
    for one in made:
        one.reward_crew.close()


def test_each_normalization_gives_another_reward(trainer: Callable[..., Trainer]) -> None:
    texts = ["0", "1", "10", "30"]
    found = {
        kind: trainer(closure(), reward_normalize=kind).batch(*texts) for kind in ("none", "zscore", "group")
    }
    assert found["none"].tolist() == [0.0, 1.0, 10.0, 30.0]
    assert found["group"].tolist() == [-1.0, 1.0, -1.0, 1.0]
    assert found["zscore"].mean().item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("choice", ["rescore", "restart"])
def test_statistics_begin_anew_with_another_version(choice: str, trainer: Callable[..., Trainer]) -> None:
    service = Served()
    one = trainer(service, reward_normalize="zscore", reward_version_change=choice)
    one.batch("0", "1")
    assert one.batch("10", "20").tolist() == [3.0, 3.0]
    service.version = "v4"
    assert one.batch("10", "20").tolist() == [-1.0, 1.0]
    assert (one.baselines_restarted, one.reward_versions) == (1, {"judge": "v4"})


def test_another_version_stops_the_run_by_default(trainer: Callable[..., Trainer]) -> None:
    service = Served()
    one = trainer(service)
    one.batch("0", "1")
    service.version = "v4"
    with pytest.raises(RewardError, match=r"'judge' has the version 'v4' now, and scored with 'v3' before"):
        one.batch("0", "1")


def test_a_version_that_changes_within_a_batch_scores_it_again(trainer: Callable[..., Trainer]) -> None:
    one = trainer(Served("v4"))
    assert one.batch("0", "1").tolist() == [0.0, 1.0]
    assert one.reward_versions == {"judge": "v4"}, "the first batch that trains"


def test_statistics_and_versions_survive_a_checkpoint(trainer: Callable[..., Trainer]) -> None:
    first = trainer(Served(), reward_normalize="zscore")
    first.batch("0", "1")
    state = first.reward_state()
    resumed = trainer(Served(), reward_normalize="zscore")
    resumed.load_reward_state(state)
    assert resumed.batch("10", "20").tolist() == [3.0, 3.0]

    changed = Served()
    changed.version = "v4"
    with pytest.raises(RewardError, match="--reward_version_change rescore"):
        trainer(changed).load_reward_state(state)
    going_on = trainer(changed, reward_normalize="zscore", reward_version_change="restart")
    going_on.load_reward_state(state)
    assert going_on.batch("10", "20").tolist() == [-1.0, 1.0]
