"""The reward."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import openai

from swift_rlx_judge.grades import BEST, NoGrade, prompt, read_grades, schema

logger = logging.getLogger(__name__)

FILE_VARIABLE = "SWIFT_RLX_JUDGE_FILE"
KEY_VARIABLE = "SWIFT_RLX_JUDGE_KEY"
PROMPT = Path(__file__).with_name("prompt.txt")


@dataclass(frozen=True)
class JudgeSettings:
    """How to ask.

    base_url: such as `http://127.0.0.1:8000/v1`. key_variable: the environment variable with its key; servers of one's
    own need none. prompt_file: with `$question`, `$answers` and `$format`. structured: hold the model to a JSON schema;
    False for servers that cannot. tries: of a reply that is no grade. retries: of what can pass (no connection, 429,
    5xx, timeouts), by the client, as `Retry-After` says. max_disagreement: see `Judge`. price_in, price_out: for a
    million tokens, in whatever currency.
    """

    base_url: str
    model: str
    prompt_file: str = str(PROMPT)
    key_variable: str = KEY_VARIABLE
    structured: bool = True
    temperature: float = 0.0
    max_tokens: int = 512
    timeout_s: float = 30.0
    tries: int = 2
    retries: int = 4
    max_concurrency: int = 16
    max_disagreement: float = 4.0
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self) -> None:
        if (
            min(self.tries, self.max_concurrency, self.max_tokens) < 1
            or self.retries < 0
            or self.timeout_s <= 0
        ):
            raise ValueError(
                "tries, max_concurrency and max_tokens are at least 1, retries 0, timeout_s positive"
            )


@dataclass
class Usage:
    """What the judge was asked since it was made. `ungraded`: replies that were no grades; `disagreed`: see `Judge`."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ungraded: int = 0
    disagreed: int = 0
    settings: JudgeSettings | None = field(default=None, repr=False)

    @property
    def cost(self) -> float:
        """In the currency of the prices."""
        if self.settings is None:
            return 0.0
        in_out = (
            self.prompt_tokens * self.settings.price_in + self.completion_tokens * self.settings.price_out
        )
        return in_out / 1_000_000


class Judge:
    """The judge's grade of the completion, from 0 to 1.

    The question is the last message of the user in the row's `messages`. Where the row has a `reference` answer, the
    judge grades both side by side, twice: once with the completion first, once with it second. The score is the mean of
    the two grades, so that a liking for a place cancels out; where they differ by more than `max_disagreement`, the
    judge does not know, and the row is unscored. So it is where the reply is no grade after `tries` tries.

    A server that cannot be reached, or refuses, raises what `openai` raises: that is no reward.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self.usage = Usage(settings=settings)
        self._template = Path(settings.prompt_file).read_text(encoding="utf-8")
        for name in ("$question", "$answers", "$format"):
            if name not in self._template:
                raise ValueError(f"the prompt in {settings.prompt_file} has no {name}")

    async def __call__(
        self,
        completions: Sequence[str],
        messages: Sequence[Sequence[Mapping[str, Any]]] | None = None,
        reference: Sequence[str | None] | None = None,
        **columns: object,
    ) -> list[float | None]:
        questions = [_question(one) for one in messages] if messages else [""] * len(completions)
        references = reference or [None] * len(completions)
        slots = asyncio.Semaphore(self.settings.max_concurrency)
        # A client a call: ms-swift may run each step's rewards in a new event loop, and a client belongs to one.
        async with self._client() as client:
            asking = [
                asyncio.ensure_future(self._score(client, slots, *row))
                for row in zip(questions, completions, references, strict=True)
            ]
            try:
                scores = await asyncio.gather(*asking)
            finally:
                for task in asking:
                    task.cancel()
        logger.info("judge %s: %s, cost %.4f", self.settings.model, self.usage, self.usage.cost)
        return list(scores)

    def _client(self) -> openai.AsyncOpenAI:
        settings = self.settings
        key = os.environ.get(settings.key_variable) or "none"
        return openai.AsyncOpenAI(
            base_url=settings.base_url, api_key=key, timeout=settings.timeout_s, max_retries=settings.retries
        )

    async def _score(
        self,
        client: openai.AsyncOpenAI,
        slots: asyncio.Semaphore,
        question: str,
        completion: str,
        reference: str | None,
    ) -> float | None:
        async with slots:
            if not reference:
                grades = await self._grades(client, question, [completion])
                return None if grades is None else grades[0] / BEST
            first, second = await asyncio.gather(
                self._grades(client, question, [completion, reference]),
                self._grades(client, question, [reference, completion]),
            )
        if first is None or second is None:
            return None
        if abs(first[0] - second[1]) > self.settings.max_disagreement:
            self.usage.disagreed += 1
            return None
        return (first[0] + second[1]) / 2 / BEST

    async def _grades(
        self, client: openai.AsyncOpenAI, question: str, answers: list[str]
    ) -> list[float] | None:
        """One grade an answer; None where the judge gave none in all its tries."""
        text = prompt(self._template, question, answers)
        for _ in range(self.settings.tries):
            try:
                return read_grades(await self._ask(client, text, len(answers)), len(answers))
            except NoGrade as error:
                self.usage.ungraded += 1
                logger.info("the judge gave no grade: %s", error)
        return None

    async def _ask(self, client: openai.AsyncOpenAI, text: str, num_answers: int) -> str:
        settings = self.settings
        options: dict[str, Any] = {}
        if settings.structured:
            named = {"name": "grades", "schema": schema(num_answers), "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": named}
        try:
            reply = await client.chat.completions.create(
                model=settings.model,
                messages=[{"role": "user", "content": text}],
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                **options,
            )
        except (json.JSONDecodeError, openai.APIResponseValidationError) as error:
            raise NoGrade(f"the server's reply is no JSON: {error}") from None
        self.usage.requests += 1
        usage = getattr(reply, "usage", None)
        self.usage.prompt_tokens += _count(usage, "prompt_tokens")
        self.usage.completion_tokens += _count(usage, "completion_tokens")
        try:
            return str(reply.choices[0].message.content or "")
        except (AttributeError, IndexError, TypeError):
            raise NoGrade(f"the server's reply holds no answer: {str(reply)[:200]}") from None


class JudgeFromFile(Judge):
    """With the settings of the JSON file that `SWIFT_RLX_JUDGE_FILE` names."""

    def __init__(self) -> None:
        path = os.environ.get(FILE_VARIABLE)
        if not path:
            raise ValueError(
                f"the judge needs a file with at least base_url and model; name it in {FILE_VARIABLE}"
            )
        super().__init__(read_settings(Path(path)))


def read_settings(path: Path) -> JudgeSettings:
    """Settings from a JSON object; a relative `prompt_file` is beside it. Raises ValueError, which names the file."""
    try:
        settings = JudgeSettings(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        names = ", ".join(one.name for one in fields(JudgeSettings))
        raise ValueError(f"the settings in {path} cannot be used: {error}; they are {names}") from error
    return replace(settings, prompt_file=str(path.parent / settings.prompt_file))


def _count(usage: Any, name: str) -> int:
    """Tokens as the server counted them; not every server does."""
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and value > 0 else 0


def _question(messages: Sequence[Mapping[str, Any]]) -> str:
    content = next((one["content"] for one in reversed(messages) if one.get("role") == "user"), "")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
