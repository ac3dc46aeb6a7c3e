"""The weights of a rollout server: given, shown by the probe, lost and given again, or somebody else's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from remote_runs import ADAPTER, FULL, START, each_server, needs, request, run, started, weights
from stand_in_server import Fault, StandIn, always
from stand_in_sglang import StandInSglang
from stand_in_vllm import StandInVllm
from worker_runs import until

from swift_rlx.backends import WeightFiles, WeightKind, remote_vllm
from swift_rlx.backends.remote_server import NOT_OURS, RemoteServer
from swift_rlx.errors import BackendError, BackendUnavailable, BackendUnfit, WeightMismatch, WeightsLost
from swift_rlx.types import FinishReason, PolicyVersion

NEXT = PolicyVersion(0, 1)


# --- weights ---------------------------------------------------------------------------------------------------------


@each_server
def test_published_weights_are_served_shown_by_the_probe_and_named_by_health(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in = kind(tmp_path)
    one, other = weights(tmp_path, 1, what), weights(tmp_path, 2, what)

    async def test() -> None:
        server = RemoteServer(stand_in.endpoint, needs(what, keeps=False))
        await server.start()
        assert (await server.health()).version == NOT_OURS
        with pytest.raises(BackendUnavailable, match="serves no weights of this run yet"):
            await server.generate(request())
        for version, files in ((START, one), (NEXT, other)):
            await server.publish(version, files)
            assert (await server.health()).version == version
            assert server.weights.probe_difference < 1e-5
            assert set((await server.generate(request())).policy_steps.tolist()) == {version.step}
        await server.close()

    run(stand_in, test())


@each_server
def test_weights_of_another_model_are_found_out(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in = kind(tmp_path)
    wrong, right = weights(tmp_path, 1, what, probe_of=2), weights(tmp_path, 3, what)

    async def test() -> None:
        server = RemoteServer(stand_in.endpoint, needs(what, keeps=False))
        await server.start()
        with pytest.raises(
            WeightMismatch, match=r"does not serve the weights 0\.0 that it took: .* nats, 0\.0001 are"
        ):
            await server.publish(START, wrong)
        await server.publish(START, right)
        with pytest.raises(BackendUnavailable, match=r"does not serve the weights 0\.1"):
            await server.publish(NEXT, wrong)
        await server.close()

    run(stand_in, test())


@pytest.mark.parametrize("what", [FULL, ADAPTER])
def test_a_server_that_says_yes_and_keeps_its_old_weights_is_found_out(
    what: WeightKind, tmp_path: Path
) -> None:
    stand_in = StandInVllm(tmp_path)
    first, second = weights(tmp_path, 1, what), weights(tmp_path, 2, what)

    async def test() -> None:
        server = await started(stand_in, first)
        stand_in.broken_weights = True
        with pytest.raises(BackendUnavailable, match="does not serve the weights"):
            await server.publish(NEXT, second)
        stand_in.broken_weights = False
        assert (await server.health()).version in (START, NOT_OURS)

    run(stand_in, test())


@each_server
def test_a_folder_that_the_server_does_not_see_is_named_with_the_flag_for_another(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in, files = kind(tmp_path), weights(tmp_path, 1, what)
    unseen = replace(files, directory=str(tmp_path / "elsewhere"))

    async def test() -> None:
        server = RemoteServer(stand_in.endpoint, needs(what, keeps=False))
        await server.start()
        with pytest.raises(
            BackendUnavailable, match=r"elsewhere.*a folder that it has to see .*--rollout_shared_direct"
        ):
            await server.publish(START, unseen)
        await server.publish(START, files)
        assert (await server.generate(request())).fault() is None

    run(stand_in, test())


def test_an_update_that_failed_leaves_nobody_to_the_broken_weights(tmp_path: Path) -> None:
    stand_in = StandInVllm(tmp_path, token_s=0.01)
    first, second = weights(tmp_path, 1), weights(tmp_path, 2)

    async def test() -> None:
        server = await started(stand_in, first)
        asking = asyncio.ensure_future(server.generate(request(max_tokens=57)))
        await until(lambda: stand_in.inflight == 1)
        with pytest.raises(BackendUnavailable):
            await server.publish(NEXT, replace(second, directory="/nowhere"))
        assert (await asking).finish_reason is FinishReason.ABORT
        assert stand_in.is_paused
        assert (await server.health()).version == NOT_OURS
        await server.publish(NEXT, second)
        assert (await server.generate(request())).policy_steps.tolist() == [1] * 8

    run(stand_in, test())


def test_an_update_that_somebody_left_unfinished_does_not_hinder_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer was killed while the server took its weights; the next one finds it paused."""
    monkeypatch.setattr(remote_vllm, "PAUSED_WAIT_S", 0.001)
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1)

    async def test() -> None:
        stand_in.is_updating = stand_in.is_paused = True
        stand_in.resumed.clear()
        server = await started(stand_in, files)
        assert (await server.generate(request())).fault() is None

    run(stand_in, test())


def test_a_server_that_was_left_with_broken_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_vllm, "PAUSED_WAIT_S", 0.001)
    stand_in = StandInVllm(tmp_path)

    async def test() -> None:
        stand_in.is_paused = True
        stand_in.full.labels.append(remote_vllm.BROKEN)
        with pytest.raises(
            BackendUnfit, match="has broken weights, since it failed to take some: start it again"
        ):
            await RemoteServer(stand_in.endpoint, needs(FULL)).start()

    run(stand_in, test())


@pytest.mark.parametrize("kind", [StandInVllm, StandInSglang])
def test_adapters_that_no_answer_needs_are_dropped_and_those_in_use_are_kept(
    kind: type[StandIn], tmp_path: Path
) -> None:
    stand_in = kind(tmp_path, token_s=0.01)
    files = [weights(tmp_path, seed, ADAPTER) for seed in range(1, 4)]

    async def test() -> None:
        server = await started(stand_in, files[0])
        long = asyncio.ensure_future(server.generate(request(max_tokens=57)))
        await until(lambda: stand_in.inflight == 1)
        for step in (1, 2):
            await server.publish(PolicyVersion(0, step), files[step])
        assert [name.rpartition("-")[2] for name in stand_in.adapters] == ["0.0", "0.2"]
        assert set((await long).policy_steps.tolist()) == {0}
        await server.publish(PolicyVersion(0, 3), files[0])
        assert [name.rpartition("-")[2] for name in stand_in.adapters] == ["0.3"]
        await server.close()
        assert not stand_in.adapters, "a server is left as it was found"

    run(stand_in, test())


def test_an_adapter_whose_loading_was_not_heard_of_is_not_loaded_twice(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1, ADAPTER)

    async def test() -> None:
        server = RemoteServer(stand_in.endpoint, needs(ADAPTER))
        await server.start()
        stand_in.fault = always(Fault(breaks_off=True), "/inference/v1/generate")
        with pytest.raises(BackendError):
            await server.publish(START, files)  # loaded, but the probe got no answer
        stand_in.fault = lambda path, body: None
        await server.publish(START, files)
        assert (await server.generate(request())).fault() is None

    run(stand_in, test())


def test_what_is_no_set_of_files_of_the_right_kind_is_refused(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1, ADAPTER)

    async def test() -> None:
        server = RemoteServer(stand_in.endpoint, needs(FULL))
        await server.start()
        for payload in (files, None, "weights"):
            with pytest.raises(BackendError, match="takes full WeightFiles, and was given"):
                await server.publish(START, payload)

    run(stand_in, test())


def test_files_that_are_not_all_weights_of_the_model_are_refused_before_the_server_is_touched(
    tmp_path: Path,
) -> None:
    from safetensors.numpy import save_file

    model, part = tmp_path / "model", tmp_path / "part"
    for folder, names in ((model, "ab"), (part, "a")):
        folder.mkdir()
        save_file({name: np.zeros(2, np.float32) for name in names}, folder / "model.safetensors")
    (model / "config.json").write_text("{}")
    stand_in = StandInVllm(tmp_path)

    async def test() -> None:
        server = RemoteServer(stand_in.endpoint, needs(FULL, model=str(model)))
        await server.start()
        with pytest.raises(BackendError, match=r"are refused: they lack b, unlike the model in"):
            await server.publish(START, WeightFiles(FULL, str(part)))
        assert not stand_in.calls["/pause"]

    run(stand_in, test())


# --- a server that is another one ------------------------------------------------------------------------------------


@each_server
def test_a_server_that_was_started_again_is_noticed_and_given_the_weights_again(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in, files = kind(tmp_path), weights(tmp_path, 1, what)

    async def test() -> None:
        server = await started(stand_in, files)
        await stand_in.stop()
        await stand_in.start()
        with pytest.raises(WeightsLost, match=r"did not publish|has lost the weights|acknowledged"):
            await server.generate(request())
        assert (await server.health()).version == NOT_OURS
        await server.publish(START, files)
        assert (await server.health()).version == START
        assert (await server.generate(request())).policy_steps.tolist() == [0] * 8

    run(stand_in, test())


@each_server
def test_health_notices_it_before_any_answer(kind: type[StandIn], what: WeightKind, tmp_path: Path) -> None:
    stand_in, files = kind(tmp_path), weights(tmp_path, 1, what)

    async def test() -> None:
        server = await started(stand_in, files)
        await stand_in.stop()
        with pytest.raises(BackendUnavailable, match="connection refused"):
            await server.health()
        await stand_in.start()
        assert (await server.health()).version == NOT_OURS

    run(stand_in, test())


def test_a_server_that_came_back_with_other_flags_is_kept_out(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files)
        await stand_in.stop()
        stand_in.is_raw = True
        await stand_in.start()
        with pytest.raises(WeightsLost):
            await server.generate(request())
        with pytest.raises(BackendUnavailable, match="start it with --logprobs-mode processed_logprobs"):
            await server.health()

    run(stand_in, test())


@pytest.mark.parametrize(("kind", "what"), [(StandInVllm, FULL), (StandInSglang, FULL)])
def test_weights_that_somebody_else_published_are_not_taken_for_ours(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in, files, others = kind(tmp_path), weights(tmp_path, 1, what), weights(tmp_path, 2, what)

    async def test() -> None:
        server, rival = await started(stand_in, files), await started(stand_in, others)
        with pytest.raises(WeightsLost, match="somebody else publishes to it"):
            await server.generate(request())
        assert (await server.health()).version == NOT_OURS
        assert (await rival.health()).version == START

    run(stand_in, test())


def test_two_runs_on_adapters_share_a_server(tmp_path: Path) -> None:
    stand_in = StandInVllm(tmp_path)
    one, other = weights(tmp_path, 1, ADAPTER), weights(tmp_path, 2, ADAPTER)

    async def test() -> None:
        servers = [await started(stand_in, one), await started(stand_in, other)]
        answers = [await server.generate(request(seed=5)) for server in servers]
        assert answers[0].token_ids.tolist() != answers[1].token_ids.tolist()
        await servers[0].close()
        assert (await servers[1].health()).version == START

    run(stand_in, test())
