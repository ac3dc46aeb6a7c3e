"""Faults of rollout servers under the real scheduler: every prompt is answered all the same, by our weights."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_runs import ADAPTER, FULL, START, each_server, needs, request, run, started, weights
from stand_in_server import Fault, StandIn, always, running
from stand_in_sglang import StandInSglang
from stand_in_vllm import StandInVllm

from swift_rlx.backends import EngineSpec, WeightFiles, WeightKind, remote_server, remote_silence
from swift_rlx.backends.remote_server import RemoteServer
from swift_rlx.backends.remote_start import start_servers
from swift_rlx.errors import BackendError, BackendUnavailable
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler, routing
from swift_rlx.testing.fake_engine import FakeEngine
from swift_rlx.types import Completion, PolicyVersion, Prompt, SamplingParams, Score

BATCHES, GROUPS, MEMBERS = 6, 4, 2
FAILING_S, LEAST_REQUESTS = 5.0, 600
SAMPLING = SamplingParams(max_tokens=12, temperature=0.7)
GENERATE = ("/inference/v1/generate", "/generate")
AtBatch = Callable[[int], Awaitable[None]]


class Run:
    """Batches of two servers; a step after each changes the weights. `answers`: what was trained, by prompt."""

    def __init__(self, folder: Path, kind: type[StandIn], what: WeightKind, **options: Any) -> None:
        self.servers = [kind(folder / name, token_s=0.001, **options) for name in "ab"]
        self.files = [weights(folder, seed, what) for seed in range(1, BATCHES + 2)]
        self.what = what
        self.keeps = kind is StandInVllm and what is FULL
        self.answers: dict[int, list[Completion]] = {}
        self.statistics: Any = None

    def run(self, at_batch: AtBatch | None = None, absent: Sequence[int] = (), **changes: Any) -> Run:
        """Run to the end. `at_batch` is called before each pick-up with its number; `absent` servers come later."""
        asyncio.run(asyncio.wait_for(self._run(at_batch, absent, changes), 60))
        return self

    async def _run(self, at_batch: AtBatch | None, absent: Sequence[int], changes: dict[str, Any]) -> None:
        async with running(*self.servers):
            wanted = needs(self.what, keeps=self.keeps, sampling=SAMPLING)
            backends = [RemoteServer(one.endpoint, wanted) for one in self.servers]
            for number in absent:
                await self.servers[number].stop()
            await start_servers(backends, START, self.files[0], limit_s=20, others_s=0.1)
            config = RolloutConfig(
                batch_groups=GROUPS, group_size=MEMBERS, max_staleness=2, max_batches=BATCHES, max_inflight=4,
                sampling=SAMPLING, abort_grace_s=1.0, **changes,
            )  # fmt: skip
            prompts = IterableSource(
                Prompt(number, np.array([1 + number % 9, 2], np.int32)) for number in range(1000)
            )
            scheduler = RolloutScheduler(config, backends, prompts, score, payload=self.files[0])
            async with scheduler:
                for number in range(BATCHES):
                    if at_batch is not None:
                        await at_batch(number)
                    batch = await scheduler.next_batch()
                    for group in batch.groups:
                        self.answers[group.group.prompt.index] = [
                            one.completion for one in group.group.members
                        ]
                    scheduler.publish(self.files[number + 1])
                self.statistics = scheduler.statistics()

    def check(self) -> None:
        """Every row is there once, and its log-probs are those of the weights that it names."""
        assert len(self.answers) == BATCHES * GROUPS
        assert all(len(members) == MEMBERS for members in self.answers.values())
        tables = [logprobs_of(files) for files in self.files]
        for index, members in self.answers.items():
            for one in members:
                before = [2, *one.token_ids.tolist()]
                steps = one.policy_steps.tolist()
                found = [
                    tables[step][last, token]
                    for step, last, token in zip(steps, before[:-1], before[1:], strict=True)
                ]
                assert np.allclose(one.logprobs, found, atol=1e-4), (index, one)

    @property
    def shares(self) -> Counter[str]:
        """Answers by server."""
        return Counter(one.worker for members in self.answers.values() for one in members)


def logprobs_of(files: WeightFiles) -> np.ndarray[Any, Any]:
    """[V, V] at the temperature of the run."""
    logits = FakeEngine(EngineSpec("fake", files.directory))._weights.logits_VV / SAMPLING.temperature
    return np.array(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    return [Score(float(one.num_tokens)) for one in completions]


def at(wanted: int, action: Callable[[], Awaitable[None]]) -> AtBatch:
    async def act(number: int) -> None:
        if number == wanted:
            await action()

    return act


@each_server
def test_an_undisturbed_run_has_every_row_with_the_log_probs_of_its_weights(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    done = Run(tmp_path, kind, what).run()
    done.check()
    assert len(done.shares) == 2
    assert not done.statistics.failures


@each_server
def test_a_server_that_is_killed_and_started_again_with_its_own_weights_loses_no_row(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    done = Run(tmp_path, kind, what)
    first = done.servers[0]

    async def restart() -> None:
        await first.stop()
        await first.start()

    done.run(at(2, restart), retries=5)
    done.check()
    assert not set(first.full.labels) - {"default"} or first.full.labels[-1].startswith("rlx-")


@pytest.mark.slow
@each_server
def test_a_server_that_stays_away_leaves_its_rows_to_the_other(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    done = Run(tmp_path, kind, what)
    done.run(at(1, done.servers[0].stop), retries=5)
    done.check()
    assert done.shares[done.servers[1].endpoint.url] > done.shares[done.servers[0].endpoint.url]


@pytest.mark.slow
@each_server
def test_a_server_that_comes_late_is_given_the_weights_and_takes_part(
    kind: type[StandIn], what: WeightKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "FIRST_EJECTION_S", 0.3)
    done = Run(tmp_path, kind, what)
    late = done.servers[1]

    async def come(number: int) -> None:
        if number == 1:
            await late.start()
        if number >= 2:  # long enough for the scheduler to ask it again
            await asyncio.sleep(1.2)

    done.run(come, absent=[1])
    done.check()
    assert done.shares[late.endpoint.url] > 0


FAULTS = {
    "500": Fault(500, b"Internal Server Error"),
    "garbage": Fault(200, b"\x00\xff{[" * 100),
    "another record": Fault(200, b'{"choices": [{"token_ids": "abc"}], "meta_info": 7}'),
    "an empty answer": Fault(200, b""),
    "a broken connection": Fault(breaks_off=True),
    "a connection that breaks in the middle of an answer": Fault(breaks_off=True, after=1),
    "busy": Fault(429, b"later", {"Retry-After": "1"}),
    "gone": Fault(404, b"Not Found"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(("kind", "what"), [(StandInVllm, FULL), (StandInSglang, ADAPTER)])
def test_a_server_that_fails_for_a_while_loses_no_row(
    kind: type[StandIn], what: WeightKind, fault: Fault, tmp_path: Path
) -> None:
    done = Run(tmp_path, kind, what)
    bad = done.servers[0]

    async def act(number: int) -> None:
        bad.fault = always(fault, *GENERATE) if number in (1, 2) else (lambda path, body: None)

    done.run(act, retries=5)
    done.check()
    assert done.statistics.failures


def test_a_server_that_fails_fast_gets_few_requests(tmp_path: Path) -> None:
    done = Run(tmp_path, StandInVllm, FULL)
    bad = done.servers[0]

    async def break_down(number: int) -> None:
        if number == 0:
            bad.fault = always(FAULTS["500"], *GENERATE)
            bad.calls.clear()

    done.run(break_down, retries=5)
    done.check()
    assert sum(bad.calls[path] for path in GENERATE) <= 12, (
        "three failures of each of four, and then an ejection"
    )


@pytest.mark.slow
def test_a_server_that_fails_fast_gets_under_one_percent_of_the_requests_after_a_second(
    tmp_path: Path,
) -> None:
    servers = [StandInVllm(tmp_path / name) for name in "ab"]
    good, bad = servers
    files = weights(tmp_path, 1)

    async def go() -> tuple[int, int]:
        backends = [RemoteServer(one.endpoint, needs(FULL, keeps=True, sampling=SAMPLING)) for one in servers]
        await start_servers(backends, START, files, limit_s=20, others_s=1.0)
        config = RolloutConfig(batch_groups=8, group_size=4, max_inflight=16, sampling=SAMPLING, retries=5)
        prompts = IterableSource(
            Prompt(number, np.array([1 + number % 9, 2], np.int32)) for number in range(10**6)
        )
        loop = asyncio.get_running_loop()
        async with RolloutScheduler(config, backends, prompts, score, payload=files) as scheduler:
            bad.fault, begin_s = always(FAULTS["500"], *GENERATE), loop.time()
            while (seconds := loop.time() - begin_s) < FAILING_S or good.calls[GENERATE[0]] < LEAST_REQUESTS:
                if seconds < 1.0:
                    good.calls.clear()
                    bad.calls.clear()
                await scheduler.next_batch()
                scheduler.publish(files)
            return good.calls[GENERATE[0]], bad.calls[GENERATE[0]]

    by_good, by_bad = run(servers, go())
    assert by_good + by_bad >= LEAST_REQUESTS
    assert 0 < by_bad < 0.01 * (by_good + by_bad), "asked again after 3 s, with one request"


HANGS = {"server": ("",), "engine": ("/is_paused", *GENERATE)}


@pytest.mark.slow
@pytest.mark.parametrize("paths", HANGS.values(), ids=HANGS)
def test_a_server_that_hangs_is_left_as_soon_as_it_is_silent(
    paths: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_silence, "ASK_S", 0.05)
    monkeypatch.setattr(remote_server, "HTTP_SILENCE_S", 1.0)
    monkeypatch.setattr(remote_server, "ENGINE_SILENCE_S", 1.5)
    done = Run(tmp_path, StandInVllm, FULL)
    hung = done.servers[0]

    async def hang(number: int) -> None:
        if number == 1:
            hung.fault = lambda path, body: Fault(hangs=True) if path.startswith(paths) else None

    done.run(hang, retries=5, publish_limit_s=1.0)  # a request may take five minutes
    done.check()
    assert done.statistics.failures.keys() == {"BackendUnavailable"}, "and none at its time limit"


def test_a_server_that_is_slow_and_not_silent_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_silence, "ASK_S", 0.02)
    slow, files = StandInVllm(tmp_path, token_s=0.1), weights(tmp_path, 1)

    async def go() -> Completion:
        server = await started(slow, files)
        try:
            return await server.generate(request(max_tokens=8))
        finally:
            await server.close()

    assert run(slow, go()).num_tokens == 8
    assert slow.calls["/health"] > 5


@pytest.mark.slow
def test_a_server_that_hangs_is_left_after_the_time_limit(tmp_path: Path) -> None:
    done = Run(tmp_path, StandInVllm, FULL)
    hung = done.servers[0]

    async def hang(number: int) -> None:
        if number == 1:
            hung.fault = lambda path, body: Fault(hangs=True)

    done.run(hang, retries=5, request_timeout_s=0.5, publish_limit_s=1.0)
    done.check()
    assert done.statistics.failures["BackendTimeout"] > 0


@pytest.mark.slow
def test_a_refused_request_costs_its_row_and_nothing_else(tmp_path: Path) -> None:
    done = Run(tmp_path, StandInVllm, FULL)

    def refuse(path: str, body: dict[str, Any]) -> Fault | None:
        return Fault(400, b'{"error": {"message": "no"}}') if body.get("token_ids", [0])[0] == 5 else None

    for server in done.servers:
        server.fault = refuse
    done.run()
    done.check()
    assert not {index for index in done.answers if 1 + index % 9 == 5}
    assert done.statistics.failures == {"BackendRejected": done.statistics.failures["BackendRejected"]}
    assert done.statistics.retries == 0


@pytest.mark.slow
def test_where_no_server_answers_any_more_the_run_ends_with_the_words_of_one(tmp_path: Path) -> None:
    done = Run(tmp_path, StandInVllm, FULL)

    async def break_down(number: int) -> None:
        if number == 1:
            for server in done.servers:
                server.fault = lambda path, body: Fault(500, b"CUDA error: device-side assert")

    with pytest.raises(
        BackendUnavailable, match=r"no rollout worker has answered .*CUDA error: device-side assert"
    ):
        done.run(break_down, retries=2, outage_limit_s=0.5)


def test_where_no_server_is_there_at_the_start_it_says_which_and_why(tmp_path: Path) -> None:
    done = Run(tmp_path, StandInVllm, FULL)

    async def go() -> None:
        async with running(*done.servers):
            backends = [RemoteServer(one.endpoint, needs(FULL)) for one in done.servers]
        await start_servers(backends, START, done.files[0], limit_s=0.3)

    with pytest.raises(
        BackendUnavailable, match=r"no rollout server answered within 0\.3 s: http://.*refused.*; http"
    ):
        asyncio.run(go())


def test_a_server_that_hangs_at_the_start_does_not_hold_up_the_other(tmp_path: Path) -> None:
    done = Run(tmp_path, StandInVllm, FULL)
    done.servers[1].fault = lambda path, body: Fault(hangs=True)

    async def go() -> list[PolicyVersion | str]:
        async with running(*done.servers):
            backends = [RemoteServer(one.endpoint, needs(FULL)) for one in done.servers]
            await start_servers(backends, START, done.files[0], limit_s=20, others_s=0.2)
            found: list[PolicyVersion | str] = [(await backends[0].health()).version]
            try:
                await backends[1].generate(None)  # type: ignore[arg-type]
            except BackendError as error:
                found.append(str(error))
            return found

    version, words = asyncio.run(asyncio.wait_for(go(), 30))
    assert version == START
    assert "was not started" in str(words)
