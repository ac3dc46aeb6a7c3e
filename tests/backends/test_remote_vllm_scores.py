"""Log-probs of a text from answers of one token: those of every token, likely or not, beside other answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from remote_runs import ADAPTER, FULL, request, run, started, weights
from stand_in_server import VOCABULARY, Fault
from stand_in_vllm import StandInVllm
from worker_runs import until

from swift_rlx.backends import EngineSpec, WeightKind
from swift_rlx.backends.remote_vllm_answers import TOPS
from swift_rlx.errors import BackendUnavailable
from swift_rlx.testing.fake_engine import FakeEngine
from swift_rlx.types import PolicyVersion

TEXT = np.array([*range(VOCABULARY), *range(VOCABULARY - 1, -1, -3)], np.int32)
"""Has every token, so some that are not among the likeliest."""


@pytest.mark.parametrize("what", [FULL, ADAPTER])
def test_each_token_has_the_log_prob_that_the_weights_give_it(what: WeightKind, tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1, what)
    expected = asyncio.run(FakeEngine(EngineSpec("fake", files.directory)).logprobs(TEXT))
    assert TOPS < VOCABULARY, "else every token is among the likeliest"

    async def test() -> None:
        server = await started(stand_in, files)
        stand_in.calls.clear()
        found = await server.logprobs(TEXT)
        assert np.abs(found - expected).max() < 1e-4
        assert stand_in.calls["/inference/v1/generate"] > len(TEXT), "some were asked for twice"
        await server.close()

    run(stand_in, test())


def test_no_text_is_scored_while_it_is_read(tmp_path: Path) -> None:
    """vLLM with room for adapters does not survive that beside answers."""
    stand_in, files = StandInVllm(tmp_path, token_s=0.01), weights(tmp_path, 1, ADAPTER)

    async def test() -> None:
        server = await started(stand_in, files)
        asking = asyncio.ensure_future(server.generate(request(max_tokens=40)))
        await until(lambda: stand_in.inflight == 1)
        await server.publish(PolicyVersion(0, 1), files)
        assert (await asking).num_tokens == 40
        asked = [body["sampling_params"] for _, body in stand_in.bodies if "sampling_params" in body]
        assert asked
        assert not any("prompt_logprobs" in one for one in asked)
        await server.close()

    run(stand_in, test())


def test_a_server_that_does_not_name_the_token_is_not_believed(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1, ADAPTER)
    content = [{"token_id": 3, "logprob": -0.5, "top_logprobs": []}]
    choice = {"token_ids": [3], "logprobs": {"content": content}, "finish_reason": "length"}

    async def test() -> None:
        server = await started(stand_in, files)
        stand_in.fault = lambda path, body: Fault(body=json.dumps({"choices": [choice]}).encode())
        with pytest.raises(BackendUnavailable, match="did not score a text: it does not say how likely"):
            await server.logprobs(np.array([1, 2], np.int32))

    run(stand_in, test())
