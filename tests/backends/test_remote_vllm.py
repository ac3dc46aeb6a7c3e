"""Real servers of vLLM: the rules of an engine over HTTP, and a run in which one of two is killed and comes back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_runs import (
    MAX_MODEL_LEN,
    PROBE,
    load,
    move,
    move_adapter,
    save_adapter,
    save_full,
    save_model,
    score,
    with_adapter,
)
from vllm_servers import START_S, VllmServer, running_servers

from swift_rlx.backends import GenerationRequest, Probe, WeightFiles, WeightKind
from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.backends.remote_dialect import Ability, ServerNeeds
from swift_rlx.backends.remote_probe import identify
from swift_rlx.backends.remote_server import RemoteServer
from swift_rlx.backends.remote_start import start_servers
from swift_rlx.errors import BackendUnavailable
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler, routing
from swift_rlx.scheduler.routing import WorkerState
from swift_rlx.testing import EngineCase, check_engine
from swift_rlx.types import Chunk, Completion, PolicyVersion, Prompt, SamplingParams, Score

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
START = PolicyVersion(0, 0)
VOCABULARY = 300
IDS = tuple(PROBE[:16].tolist())


def probed(files: WeightFiles, model: Any) -> WeightFiles:
    return WeightFiles(files.kind, files.directory, Probe(PROBE, score(model, PROBE), tolerance=1e-3))


def needs(kind: WeightKind, model: Path, **changes: Any) -> ServerNeeds:
    given = {"keeps": kind is WeightKind.FULL, "model": str(model), "probe_ids": IDS, "max_adapter_rank": 4}
    return ServerNeeds(kind, VOCABULARY, **(given | changes))


# --- servers that start slowly, and are shared therefore: the tests follow one another -------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "llama", tied=True, ends=True)


@pytest.fixture(scope="module")
def both(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    """Two servers that take adapters and all weights."""
    folder = tmp_path_factory.mktemp("servers")
    servers = [VllmServer(model, folder) for _ in range(2)]
    with running_servers(servers):
        yield servers


@pytest.fixture(scope="module")
def without_lora(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server that takes all weights and no adapters, though it has the route for them."""
    one = VllmServer(model, tmp_path_factory.mktemp("server"), kinds=(WeightKind.FULL,))
    one._words.insert(0, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    with running_servers([one]):
        yield one


def test_a_server_with_default_flags_is_refused_for_what_it_lacks(model: Path, tmp_path: Path) -> None:
    one = VllmServer(model, tmp_path, kinds=(), flags="--logprobs-mode raw_logprobs")

    async def go() -> dict[Ability, str]:
        client = RemoteServer(one.endpoint, needs(WeightKind.FULL, model))._client
        _, facts = await identify(client, IDS)
        await client.close()
        return dict(facts.lacks)

    with running_servers([one]):
        lacks = asyncio.run(go())
        assert one.is_ready, "being asked for what it lacks does it no harm"
    assert lacks.keys() == set(Ability) - {Ability.TOKENS}
    assert lacks[Ability.LOGPROBS] == "start it with --logprobs-mode processed_logprobs"


def check(server: VllmServer, model: Path, files: list[WeightFiles]) -> None:
    async def make() -> RemoteServer:
        one = RemoteServer(server.endpoint, needs(files[0].kind, model))
        await one.start()
        await one.publish(START, files[0])
        return one

    ends = (load(model).config.eos_token_id,)
    case = EngineCase(
        vocabulary=VOCABULARY,
        max_model_len=MAX_MODEL_LEN,
        prompt=tuple(range(40, 50)),
        ends=ends,
        weights=files,
    )
    check_engine(make, case)


def test_a_server_that_is_given_adapters_keeps_the_rules(
    both: list[VllmServer], model: Path, tmp_path: Path
) -> None:
    policy, files = with_adapter(load(model)), []
    for step in range(3):
        move_adapter(policy, seed=step)
        files.append(probed(save_adapter(policy, tmp_path / f"v{step}"), policy))
    check(both[0], model, files)


def test_adapters_are_checked_beside_answers_that_were_begun_under_older_ones(
    both: list[VllmServer], model: Path, tmp_path: Path
) -> None:
    publish_beside_answers(WeightKind.ADAPTER, both[0], model, tmp_path)


def test_a_run_with_adapters_goes_on_while_one_of_two_servers_is_killed_and_started_again(
    both: list[VllmServer], model: Path, tmp_path: Path, asked_again_soon: None
) -> None:
    train_while_the_first_is_killed(WeightKind.ADAPTER, model, both, tmp_path)


def test_a_server_that_is_given_all_weights_keeps_the_rules(
    both: list[VllmServer], model: Path, tmp_path: Path
) -> None:
    policy, files = load(model), []
    for step in range(3):
        move(policy, seed=step)
        files.append(probed(save_full(policy, tmp_path / f"v{step}"), policy))
    check(both[1], model, files)


def test_all_weights_are_checked_beside_answers_that_were_begun_under_older_ones(
    both: list[VllmServer], model: Path, tmp_path: Path
) -> None:
    publish_beside_answers(WeightKind.FULL, both[1], model, tmp_path)


def test_files_that_the_server_does_not_see_are_refused_by_it(
    both: list[VllmServer], model: Path, tmp_path: Path
) -> None:
    """The folder is renamed between the check on this side and the server's look at it."""
    policy = load(model)
    files = probed(save_full(policy, tmp_path / "v0"), policy)

    async def go() -> None:
        one = RemoteServer(both[1].endpoint, needs(WeightKind.FULL, model))
        await one.start()
        unseen = WeightFiles(files.kind, str(tmp_path / "elsewhere"), files.probe)
        one.weights._check_files = lambda files: None  # type: ignore[method-assign]
        with pytest.raises(
            BackendUnavailable, match=r"has 0 files of weights here.*elsewhere, a folder that it has to see"
        ):
            await one.publish(START, unseen)
        assert (await one.health()).version != START
        await one.publish(START, files)
        assert (await one.health()).version == START
        await one.close()

    asyncio.run(go())


def test_adapters_are_not_taken_for_possible_where_lora_is_off(without_lora: VllmServer, model: Path) -> None:
    async def go() -> dict[Ability, str]:
        client = RemoteServer(without_lora.endpoint, needs(WeightKind.FULL, model))._client
        _, facts = await identify(client, IDS)
        _, facts = await identify(client, IDS)  # it lives on
        await client.close()
        return dict(facts.lacks)

    lacks = asyncio.run(go())
    assert lacks.keys() == {Ability.ADAPTERS}
    assert lacks[Ability.ADAPTERS].startswith("start it with --enable-lora")


def test_a_run_with_all_weights_goes_on_while_one_of_two_servers_is_killed_and_started_again(
    both: list[VllmServer],
    without_lora: VllmServer,
    model: Path,
    tmp_path: Path,
    asked_again_soon: None,
) -> None:
    train_while_the_first_is_killed(WeightKind.FULL, model, [without_lora, both[1]], tmp_path)


# --- checks beside answers -------------------------------------------------------------------------------------------


def publish_beside_answers(kind: WeightKind, one: VllmServer, model: Path, tmp_path: Path) -> None:
    """Versions that are scored in the same batches as answers of those before; the server has room for adapters.

    `askers` ask again as soon as they are answered: some answers are in flight whenever weights come.
    """
    is_full = kind is WeightKind.FULL
    policy = load(model) if is_full else with_adapter(load(model))
    length, steps, askers = 200, 4, 4
    sampling = SamplingParams(max_tokens=length, barred_token_ids=(load(model).config.eos_token_id,))
    answers: list[Completion] = []
    published_s: list[tuple[float, float]] = []
    has_ended = False

    async def ask(server: RemoteServer, asker: int) -> None:
        for number in itertools.count():
            prompt = Prompt(asker, np.arange(20 + asker, 30 + asker, dtype=np.int32))
            answers.append(await server.generate(GenerationRequest(f"{asker}-{number}", prompt, 0, sampling)))
            if has_ended:
                return

    async def go() -> None:
        nonlocal has_ended
        server = RemoteServer(one.endpoint, needs(kind, model))
        await server.start()
        asking: list[asyncio.Task[None]] = []
        for step in range(steps):
            (move if is_full else move_adapter)(policy, seed=step)
            files = (save_full if is_full else save_adapter)(policy, tmp_path / f"beside-{step}")
            weights, begin_s = probed(files, policy), time.monotonic()
            await server.publish(PolicyVersion(0, step), weights)
            published_s.append((begin_s, time.monotonic()))
            difference = server.weights.probe_difference
            assert difference is not None
            assert difference < 1e-3
            asking = asking or [asyncio.ensure_future(ask(server, asker)) for asker in range(askers)]
            before = len(answers)
            while len(answers) < before + askers:
                await asyncio.wait(asking, timeout=0.01, return_when=asyncio.FIRST_EXCEPTION)
                assert not any(asker.done() for asker in asking), asking
        has_ended = True
        await asyncio.gather(*asking)
        assert {*answers[-1].policy_steps.tolist()} == {steps - 1}
        await server.close()

    asyncio.run(asyncio.wait_for(go(), START_S))
    made_by = [sorted(set(answer.policy_steps.tolist())) for answer in answers]
    assert {step for versions in made_by for step in versions} == set(range(steps))
    assert {answer.num_tokens for answer in answers} == {length}
    for begin_s, end_s in published_s[1:]:
        assert any(one.start_s < end_s and one.finish_s > begin_s for one in answers), "beside the weights"
    if not is_full:
        assert {len(versions) for versions in made_by} == {1}, "an answer keeps its adapter"
    assert one.is_ready


# --- two servers, one of which is killed -----------------------------------------------------------------------------

BATCHES, GROUPS, MEMBERS = 10, 4, 2
SAMPLING = SamplingParams(max_tokens=24, temperature=0.8)


async def constant(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    return [Score(1.0) for _ in completions]


@pytest.fixture
def asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that failed; the run would be over before."""
    monkeypatch.setattr(routing, "MAX_EJECTION_S", 2.0)


class Watched(RemoteServer):
    """Does something once, as soon as it hears of tokens: in the middle of an answer."""

    then: Callable[[], None] | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.has_begun = asyncio.Event()

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        def told(chunk: Chunk) -> None:
            on_progress(chunk)
            then, self.then = self.then, None
            if then is not None:
                then()
                self.has_begun.set()

        return await super().generate(request, told)


def train_while_the_first_is_killed(
    kind: WeightKind, model: Path, servers: list[VllmServer], tmp_path: Path
) -> None:
    """The first server comes back as one that takes these weights alone."""
    policy = load(model) if kind is WeightKind.FULL else with_adapter(load(model))
    files, texts = [], []

    def publish_next() -> WeightFiles:
        step = len(files)
        (move if kind is WeightKind.FULL else move_adapter)(policy, seed=step)
        save = save_full if kind is WeightKind.FULL else save_adapter
        files.append(probed(save(policy, tmp_path / f"v{step}"), policy))
        return files[-1]

    async def go() -> Any:
        wanted = needs(kind, model, sampling=SAMPLING)
        backends = [Watched(server.endpoint, wanted) for server in servers]
        first = publish_next()
        await start_servers(backends, START, first)
        config = RolloutConfig(
            batch_groups=GROUPS, group_size=MEMBERS, max_staleness=2, max_batches=BATCHES, max_inflight=4,
            sampling=SAMPLING, retries=6, request_timeout_s=60,
        )  # fmt: skip
        prompts = IterableSource(Prompt(number, np.arange(20 + number, 30 + number)) for number in range(200))
        async with RolloutScheduler(config, backends, prompts, constant, payload=first) as scheduler:
            for number in range(BATCHES):
                if number == 2:
                    await backends[0].has_begun.wait()
                    servers[0].configure((kind,))
                    servers[0].launch()
                if number == 4:
                    await servers[0].wait()
                if number == 5:
                    while scheduler._state.router.workers[0].state is not WorkerState.OPEN:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                batch = await scheduler.next_batch()
                texts.extend(
                    (one.group.prompt, each.completion) for one in batch.groups for each in one.group.members
                )
                if number == 1:
                    backends[0].then = servers[0].kill
                scheduler.publish(publish_next())
            return scheduler.statistics()

    statistics = asyncio.run(asyncio.wait_for(go(), START_S + 100))
    assert len(texts) == BATCHES * GROUPS * MEMBERS
    assert len({prompt.index for prompt, _ in texts}) == BATCHES * GROUPS
    assert statistics.failures, "the killed server had answers in flight"
    after = [answer.worker for _, answer in texts[-4 * GROUPS * MEMBERS :]]
    assert set(after) == {server.endpoint.url for server in servers}, "both take part in the end"
    check_logprobs(kind, model, files, texts)


def check_logprobs(kind: WeightKind, folder: Path, files: list[WeightFiles], texts: list[Any]) -> None:
    """Each token's is that of the weights that it names, at the temperature of the run."""
    for step, published in enumerate(files):
        model = weights_of(kind, folder, published)
        for prompt, answer in texts:
            made_here = answer.policy_steps == step
            if made_here.any():
                whole = np.concatenate([prompt.token_ids, answer.token_ids])
                scores = score(model, whole, SAMPLING.temperature)[len(prompt.token_ids) - 1 :]
                assert np.abs(scores - answer.logprobs)[made_here].max() < 1e-3


def weights_of(kind: WeightKind, folder: Path, files: WeightFiles) -> Any:
    if kind is WeightKind.ADAPTER:
        from peft import PeftModel

        return PeftModel.from_pretrained(load(folder), files.directory).eval()
    from safetensors.torch import load_file

    model = load(folder)
    model.load_state_dict(load_file(Path(files.directory) / "weights.safetensors"), strict=False)
    return model.eval()
