"""Candidates by a scripted engine: reproducible, whole, none twice, and begun again where they stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from swift_rlx.backends import EngineSpec
from swift_rlx.candidates import CandidateSettings, GenerationLimits, PromptColumns, generate, read_prompts
from swift_rlx.candidates.generation import lacking
from swift_rlx.candidates.source import WindowedPrompts
from swift_rlx.errors import BackendRejected, ConfigError
from swift_rlx.scheduler import RolloutConfig
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.verification import verify
from swift_rlx.testing.fake_engine import FakeEngine, save_fake_weights
from swift_rlx.types import Prompt, SamplingParams

SAMPLINGS = tuple(SamplingParams(max_tokens=6, temperature=one, top_p=0.9) for one in (0.0, 0.7, 1.3))
SETTINGS = CandidateSettings(4, SAMPLINGS, 11, "fake m@1")
REFUSED = 9


class Digits:
    """A tokenizer: a token is a digit of the prompt; an answer is written as its ids."""

    def prompt(self, messages):
        return [int(letter) for letter in messages[-1]["content"]]

    def text(self, token_ids):
        return " ".join(map(str, token_ids))


class Engines:
    """Makes the workers, in process; counts the requests that they got, and fails them all after `limit`."""

    def __init__(self, folder, workers=1, limit=None, **options):
        save_fake_weights(folder, seed=3)
        self._spec = EngineSpec("fake", str(folder), options=options)
        self._workers, self._limit = workers, limit
        self.requests = []

    async def __call__(self):
        return [self._engine(f"worker-{number}") for number in range(self._workers)]

    def _engine(self, name):
        engine = FakeEngine(self._spec)
        engine.name, made = name, engine.generate

        async def generate(request, on_progress):
            if self._limit is not None and len(self.requests) >= self._limit:
                raise ConfigError("the test ends here")
            self.requests.append(request)
            return await made(request, on_progress)

        engine.generate = generate
        return engine


def prompts(tmp_path, *texts):
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": one, "tag": one}) + "\n" for one in texts))
    return read_prompts([file], PromptColumns())


def made(store, asked, engines, settings=SETTINGS, **limits):
    due = lacking(store, asked, settings.writer)
    return generate(store, due, settings, engines, Digits(), GenerationLimits(**limits))


def contents(store):
    """What the store has, by prompt and member."""
    found = {}
    for stored in (snapshot := store.snapshot()).groups(range(snapshot.num_groups)):
        for one, text, sampling in zip(stored.group.members, stored.texts, stored.sampling, strict=True):
            key = (stored.group.prompt.columns["tag"], stored.group.prompt.epoch, one.member)
            assert key not in found
            ids, logprobs = one.completion.token_ids.tolist(), one.completion.logprobs.tolist()
            assert text == " ".join(map(str, ids))
            found[key] = (
                ids,
                logprobs,
                sampling,
                one.completion.finish_reason,
                stored.engine,
                one.score.reward,
            )
    return found


TEXTS = [f"{number:03d}" for number in range(40)]


def test_candidates_are_those_of_their_prompt_number_and_seed_alone(tmp_path):
    first, second = (TrajectoryStore.create(tmp_path / name) for name in "ab")
    done = made(first, prompts(tmp_path, *TEXTS), Engines(tmp_path / "w"))
    assert (done.groups, done.rows, done.failed) == (40, 160, ())
    made(second, prompts(tmp_path, *reversed(TEXTS)), Engines(tmp_path / "w", workers=3), max_inflight=8)
    assert contents(first) == contents(second)
    assert len({tuple(ids) for ids, *_ in contents(first).values()}) > 60
    assert {one[5] for one in contents(first).values()} == {None}


def test_candidate_i_takes_sampling_i_and_the_store_says_which(tmp_path):
    store, engines = TrajectoryStore.create(tmp_path / "s"), Engines(tmp_path / "w")
    made(store, prompts(tmp_path, "123"), engines)
    by_member = {request.member: request.sampling for request in engines.requests}
    assert [by_member[member].temperature for member in range(4)] == [0.0, 0.7, 1.3, 0.0]
    assert len({one.seed for one in by_member.values()}) == 4
    [stored] = store.snapshot().groups([0])
    assert stored.sampling == tuple(by_member[member] for member in range(4))
    assert (stored.engine, stored.group.order) == ("fake m@1", 0)
    assert stored.group.prompt.token_ids.tolist() == [1, 2, 3]
    assert {row.temperature for row in store.snapshot().rows(range(4))} == {
        np.float32(one) for one in (0, 0.7, 1.3)
    }


def test_a_run_that_ended_early_goes_on_and_nothing_is_there_twice(tmp_path):
    whole, broken = (TrajectoryStore.create(tmp_path / name) for name in "ab")
    asked = prompts(tmp_path, *TEXTS)
    made(whole, asked, Engines(tmp_path / "w"))
    with pytest.raises(ConfigError, match="the test ends here"):
        made(broken, asked, Engines(tmp_path / "w", limit=90), seal_rows=16, max_inflight=8)
    before = contents(broken)
    assert 0 < len(before) <= 90
    again = Engines(tmp_path / "w")
    made(broken, asked, again)
    assert contents(broken) == contents(whole)
    assert len(again.requests) == 160 - len(before)
    assert verify(broken.place, broken.manifest()).is_sound
    assert made(broken, asked, Engines(tmp_path / "w", limit=0)).rows == 0


def test_other_settings_are_other_candidates_and_more_prompts_are_added(tmp_path):
    store, engines = TrajectoryStore.create(tmp_path / "s"), Engines(tmp_path / "w")
    made(store, prompts(tmp_path, "12", "13"), engines)
    made(store, prompts(tmp_path, "14", "12", "13"), engines)
    assert len(engines.requests) == 12
    made(store, prompts(tmp_path, "12"), engines, replace(SETTINGS, seed=12))
    assert len(engines.requests) == 16
    assert store.snapshot().num_rows == 16


def test_a_prompt_that_is_there_twice_gets_other_candidates_the_second_time(tmp_path):
    store = TrajectoryStore.create(tmp_path / "s")
    made(store, prompts(tmp_path, "12", "12"), Engines(tmp_path / "w"))
    found = contents(store)
    assert {key[:2] for key in found} == {("12", 0), ("12", 1)}
    assert [found["12", 0, member][0] for member in range(1, 4)] != [
        found["12", 1, member][0] for member in range(1, 4)
    ]


def test_a_prompt_that_cannot_be_answered_is_told_and_tried_again(tmp_path):
    store = TrajectoryStore.create(tmp_path / "s")
    asked = prompts(tmp_path, *TEXTS, "9")
    sick = Engines(tmp_path / "w")
    settings = replace(SETTINGS, count=2)
    done = generate(store, asked, settings, _rejecting(sick), Digits(), GenerationLimits())
    assert [(one.place, why) for one, why in done.failed] == [(40, "no answer to that")]
    assert done.groups == 40
    assert made(store, asked, Engines(tmp_path / "w"), settings).groups == 1


def _rejecting(engines):
    """The workers, that refuse prompts which begin with `REFUSED`."""

    async def start():
        [engine] = await engines()
        inner = engine.generate

        async def generate(request, on_progress):
            if request.prompt.token_ids[0] == REFUSED:
                raise BackendRejected("no answer to that")
            return await inner(request, on_progress)

        engine.generate = generate
        return [engine]

    return start


def test_no_more_prompts_are_open_than_the_window_allows():
    changes = []
    source = WindowedPrompts((Prompt(number, np.zeros(1, np.int32)) for number in range(3)), 2)
    source.on_change(lambda: changes.append(1))
    assert [source.next().index, source.next().index, source.next()] == [0, 1, None]
    assert not source.is_exhausted
    source.ended()
    assert (source.next().index, source.is_exhausted, changes) == (2, True, [1])
    source.ended()
    assert source.next() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "0 candidates a prompt are refused"),
        ({"samplings": ()}, "name at least one temperature"),
        (
            {"samplings": (SamplingParams(temperature=-1.0),)},
            "temperature -1 is refused: it must be at least 0",
        ),
        ({"samplings": (SamplingParams(top_p=0.0),)}, "top_p 0 is refused: it must be above 0"),
        ({"samplings": (SamplingParams(max_tokens=0),)}, "max_tokens 0 is refused"),
    ],
)
def test_numbers_that_make_no_distribution_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(SETTINGS, **change)


def test_every_setting_names_another_writer():
    changes = [
        {"count": 5},
        {"seed": 1},
        {"engine": "fake m@2"},
        {"samplings": SAMPLINGS[:2]},
        {"samplings": (replace(SAMPLINGS[0], stop=("x",)), *SAMPLINGS[1:])},
    ]
    assert len({SETTINGS.writer, *(replace(SETTINGS, **one).writer for one in changes)}) == 6
    assert SETTINGS.writer == replace(SETTINGS).writer


def test_members_without_samplings_of_their_own_have_the_one_of_all():
    config = RolloutConfig(1, sampling=SAMPLINGS[1])
    assert config.sampling_of(5) is SAMPLINGS[1]
    assert replace(config, samplings=SAMPLINGS).sampling_of(5) is SAMPLINGS[2]
