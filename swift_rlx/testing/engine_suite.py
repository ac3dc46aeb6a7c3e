"""What every rollout engine must do, as one call in the tests of an engine's author.

    def test_my_engine_keeps_the_rules(tmp_path):
        check_engine(lambda: create(spec), EngineCase(vocabulary=300, max_model_len=256, prompt=(1, 2, 3)))

The same call checks a `WorkerProcess` around an engine, and so the way through a channel. The rules are the functions
of `engine_rules`, `engine_progress_rules` and `engine_weight_rules`; they are run on one engine, in their order there.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swift_rlx.backends import Engine, GenerationRequest, WeightFiles
from swift_rlx.errors import ConfigError
from swift_rlx.registry import one_line
from swift_rlx.types import Completion, FloatArray, PolicyVersion, Prompt, SamplingParams

LONG_PROMPT = 300
"""Tokens; caches of prefixes keep blocks of up to 256."""


@dataclass(frozen=True)
class EngineCase:
    """What the suite has to know of the engine that it is given.

    `prompt`: token ids after which the engine's distribution is not all but certain. `ends`: token ids that end an
    answer by themselves. `version`: that it serves at first. `weights`: two or more that differ, with probes; without
    them the rules about publishing are left out. `max_inflight`: how many answers it makes at a time. `tolerance`:
    nats by which log-probs may differ. `limit_s`: seconds for each rule.
    """

    vocabulary: int
    max_model_len: int
    prompt: Sequence[int] = (1, 2, 3)
    ends: Sequence[int] = ()
    version: PolicyVersion = field(default_factory=PolicyVersion)
    weights: Sequence[WeightFiles] = ()
    max_inflight: int = 32
    tolerance: float = 1e-3
    limit_s: float = 120.0

    def __post_init__(self) -> None:
        if len(self.weights) == 1 or any(one.probe is None for one in self.weights):
            raise ConfigError("EngineCase takes no weights, or at least two that differ, each with a probe")
        if len(self.prompt) + 24 > self.max_model_len:
            raise ConfigError(
                f"max_model_len {self.max_model_len} is refused: the suite needs {len(self.prompt) + 24}"
            )


class Subject:
    """The engine under test, and how the rules ask it."""

    def __init__(self, engine: Engine, case: EngineCase) -> None:
        self.engine = engine
        self.case = case
        self.version = case.version
        self._numbers = itertools.count()

    def request(self, prompt: Sequence[int] | None = None, **sampling: Any) -> GenerationRequest:
        """A request with an id of its own. Eight tokens at temperature 1, unless `sampling` says otherwise."""
        number = next(self._numbers)
        ids = np.array(self.case.prompt if prompt is None else prompt, np.int32)
        parameters = SamplingParams(**{"max_tokens": 8, "seed": 1, **sampling})
        return GenerationRequest(f"suite/{number}", Prompt(number, ids), 0, parameters)

    async def answer(self, prompt: Sequence[int] | None = None, **sampling: Any) -> Completion:
        """An answer to such a request."""
        return await self.engine.generate(self.request(prompt, **sampling))

    async def answers(self, seeds: Sequence[int], **sampling: Any) -> list[Completion]:
        """Answers to the prompt, all at a time."""
        return list(
            await asyncio.gather(
                *(self.engine.generate(self.request(seed=seed, **sampling)) for seed in seeds)
            )
        )

    @property
    def room(self) -> int:
        """Tokens that fit after the prompt."""
        return self.case.max_model_len - len(self.case.prompt)

    @property
    def longest(self) -> int:
        """Tokens of an answer whose text can still be scored: engines want room for one more."""
        return self.room - 1

    @property
    def long_prompt(self) -> tuple[int, ...]:
        """The prompt again and again: longer than a block of a prefix cache, where the model has the room."""
        length = min(LONG_PROMPT, self.case.max_model_len - 24)
        return tuple(itertools.islice(itertools.cycle(self.case.prompt), length))

    async def scored(self, completion: Completion, prompt: Sequence[int] | None = None) -> FloatArray:
        """Log-probs of the answer's tokens at temperature 1, under the weights served now."""
        ids = np.array(self.case.prompt if prompt is None else prompt, np.int32)
        logprobs = await self.engine.logprobs(np.concatenate([ids, completion.token_ids]))
        return logprobs[len(ids) - 1 :]

    def apart(self, one: FloatArray, other: FloatArray) -> float:
        """The largest difference in nats."""
        return float(np.abs(np.asarray(one, np.float64) - other).max(initial=0.0))


Rule = Callable[[Subject], AsyncIterator[str]]


def check_engine(make_engine: Callable[[], Engine | Awaitable[Engine]], case: EngineCase) -> None:
    """Check the engine that `make_engine()` returns, or returns a promise of; it is closed at the end.

    Raises AssertionError listing every broken rule.
    """
    broken = asyncio.run(_broken(make_engine, case))
    if broken:
        listed = "".join(f"\n- {each}" for each in broken)
        raise AssertionError(f"the engine breaks {len(broken)} rule(s):{listed}")


async def _broken(make_engine: Callable[[], Engine | Awaitable[Engine]], case: EngineCase) -> list[str]:
    from swift_rlx.testing.engine_progress_rules import PROGRESS_RULES
    from swift_rlx.testing.engine_rules import CLOSING, RULES
    from swift_rlx.testing.engine_weight_rules import WEIGHT_RULES

    made = make_engine()
    engine = await made if inspect.isawaitable(made) else made
    subject = Subject(engine, case)
    found = []
    try:
        for rule in (*RULES, *PROGRESS_RULES, *(WEIGHT_RULES if case.weights else ()), CLOSING):
            found += await _findings(rule, subject)
    finally:
        await engine.close()
    return found


async def _findings(rule: Rule, subject: Subject) -> list[str]:
    async def collect() -> list[str]:
        return [finding async for finding in rule(subject)]

    try:
        found = await asyncio.wait_for(collect(), subject.case.limit_s)
    except (asyncio.TimeoutError, TimeoutError) as error:
        found = [one_line(error) if str(error) else f"not done after {subject.case.limit_s:g} s"]
    except Exception as error:  # noqa: BLE001 (an engine under test raises what it likes)
        found = [f"raised {one_line(error)}"]
    return [f"{rule.__name__}: {finding}" for finding in found]
