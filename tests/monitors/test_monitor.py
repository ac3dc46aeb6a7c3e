"""The facade: what it is told reaches the files; a watched backend tells it."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from swift_rlx.backends import GenerationRequest
from swift_rlx.errors import BackendTimeout
from swift_rlx.monitors import Monitor, Phase, RolloutPlan, WatchedBackend, read_timeline
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import PolicyVersion, Prompt, SamplingParams


def _spans(folder):
    events = read_timeline(folder / "timeline.json")
    lanes = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    return {(lanes[one["tid"]], one["name"]): one for one in events if one["ph"] == "X"}


def test_a_watched_backend_reports_answers_failures_and_publishes(tmp_path):
    async def run():
        now = asyncio.get_running_loop().time
        monitor = Monitor(tmp_path, now)
        fault = Fault(BackendTimeout, after_s=0.5)
        script = FakeScript(fault=lambda request: fault if request.prompt.index else None, publish_s=0.25)
        backend = WatchedBackend(FakeBackend(script=script), monitor, now)
        prompts = [Prompt(at, np.zeros(1, np.int32)) for at in (0, 1)]
        requests = [GenerationRequest(str(at), one, 3, SamplingParams()) for at, one in enumerate(prompts)]
        completion = await backend.generate(requests[0])
        with pytest.raises(BackendTimeout):
            await backend.generate(requests[1])
        await backend.publish(PolicyVersion(0, 4), None)
        assert (await backend.health()).version == PolicyVersion(0, 4)
        assert backend.name == "worker-0"
        assert backend.capabilities.keep
        values = monitor.window()
        await backend.close()
        monitor.close()
        return completion, values

    completion, values = run_virtual(run())
    assert completion.num_tokens == 10
    assert values["rollout/tokens_per_s"] == pytest.approx(10 / 1.75)
    assert values["rollout/apply_s"] == pytest.approx(0.25)
    spans = _spans(tmp_path)
    assert {key: (span["ts"], span["dur"]) for key, span in spans.items()} == {
        ("answers", "prompt 0/0 #3"): (0, 1_000_000),
        ("failures", "prompt 0/1 #3: BackendTimeout"): (1_000_000, 500_000),
        ("weights", "load 0.4"): (1_500_000, 250_000),
    }


def test_the_trainer_and_the_rewards_have_lanes(tmp_path):
    monitor = Monitor(tmp_path, lambda: 50.0)
    for at, phase in enumerate(Phase):
        monitor.trained(50.0 + at, 51.0 + at, 7, phase)
    monitor.scored("accuracy", 50.0, 52.0, 8)
    monitor.scored("accuracy", 51.0, 52.5, 4)
    monitor.close()
    assert set(_spans(tmp_path)) == {
        *(("trainer", f"{phase.value} 7") for phase in Phase),
        ("accuracy", "score 8"),
        ("accuracy 2", "score 4"),
    }


def test_a_line_is_numbered_by_the_newest_step_and_closing_is_final(tmp_path):
    monitor = Monitor(tmp_path, lambda: 0.0, plan=RolloutPlan(workers=3))
    monitor.trained(0.0, 1.0, 4)
    monitor.window()
    assert monitor.summary().startswith("rollout: 1 step, too few to say")
    monitor.close()
    monitor.close()
    monitor.trained(1.0, 2.0, 5)
    monitor.window()
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4]


def test_an_answer_in_the_timeline_has_the_versions_of_what_was_sampled(tmp_path):
    monitor = Monitor(tmp_path, lambda: 50.0)
    script = FakeScript(sampled=lambda request, count: np.arange(count) % 2 == 1)

    async def generate():
        request = GenerationRequest("0", Prompt(0, np.zeros(1, np.int32)), 0, SamplingParams())
        return await FakeBackend(script=script, version=PolicyVersion(0, 4)).generate(request)

    completion = run_virtual(generate())
    assert completion.policy_steps[0] == -1
    monitor.trained(50.0, 51.0, 6)
    monitor.completion(completion, "talk")
    monitor.close()
    details = _spans(tmp_path)["answers", "talk"]["args"]
    assert (details["version_min"], details["version_max"], details["staleness"]) == ("0.4", "0.4", 2)
    assert details["tokens"] == completion.num_tokens == 10


def test_before_the_first_line_progress_shows_what_is_known(tmp_path):
    monitor = Monitor(tmp_path, lambda: 0.0)
    assert monitor.progress() == "rollout 0 tok/s"
    monitor.close()
