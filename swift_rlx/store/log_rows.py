"""From logged rows to prompts with answers: which column means what, and what makes a row unfit.

A row has one answer, or a list of them with a list of scores. Answers to the same prompt, in whatever rows of a file,
are one group. Columns that mean nothing here are kept with the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from swift_rlx.errors import StoreError
from swift_rlx.store.log_files import LoggedRow, RowRefused
from swift_rlx.store.recipe import Source

MEANINGS = {
    "prompt": "text, or messages",
    "prompt_ids": "token ids of the prompt",
    "answer": "text, or a list of texts",
    "token_ids": "token ids of the answer",
    "logprobs": "log-prob of each of its tokens",
    "loss_mask": "false for tokens of an environment",
    "score": "number, an object of several by name, or a list for a list of answers",
    "id": "what identifies the prompt",
    "finish_reason": "stop or length",
}
OF_ANSWER = ("answer", "token_ids", "logprobs", "loss_mask", "score", "finish_reason")


class Encoder(Protocol):
    """Makes token ids of text, as training does."""

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """The prompt up to where the answer begins."""

    def answer(self, messages: list[dict[str, Any]], text: str) -> list[int]:
        """The answer with what ends it."""


@dataclass(frozen=True, slots=True)
class LogColumns:
    """`names`: the column of each meaning, by default called like it. `source`: what a plain number is a score of."""

    names: Mapping[str, str] = field(default_factory=dict)
    source: Source = field(default_factory=lambda: Source("score", "imported"))

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.names) - set(MEANINGS)):
            raise StoreError(f"--columns {unknown[0]}=... is refused: a column means {', '.join(MEANINGS)}")

    def of(self, row: LoggedRow) -> dict[str, Any]:
        """What the row says, by meaning; what it lacks is absent."""
        named = {meaning: self.names.get(meaning, meaning) for meaning in MEANINGS}
        for meaning, name in self.names.items():
            if name not in row.values and meaning in ("prompt", "answer"):
                raise row.refused(
                    f"there is no column '{name}' for the {meaning}; it has {', '.join(row.values)}"
                )
        found = {
            meaning: row.values[name] for meaning, name in named.items() if row.values.get(name) is not None
        }
        if "prompt" not in found and row.values.get("messages") is not None:
            found["prompt"] = row.values["messages"]
        return found

    def is_empty(self, row: LoggedRow, *meanings: str) -> bool:
        """Whether the row has the column of one of these meanings, and nothing in it."""
        names = (self.names.get(meaning, meaning) for meaning in meanings)
        return any(name in row.values and row.values[name] is None for name in names)

    def free(self, row: LoggedRow) -> dict[str, Any]:
        """The other columns."""
        used = {self.names.get(meaning, meaning) for meaning in MEANINGS} | {"messages"}
        return {name: value for name, value in row.values.items() if name not in used and value is not None}


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """One answer of a row, by meaning."""

    row: LoggedRow
    values: Mapping[str, Any]


@dataclass(slots=True)
class LoggedPrompt:
    """A prompt and all its answers. `messages`: None where only its token ids are known."""

    key: str
    prompt_id: str
    messages: list[dict[str, Any]] | None
    token_ids: list[int] | None
    columns: dict[str, Any]
    answers: list[LoggedAnswer] = field(default_factory=list)

    def is_another(self, other: LoggedPrompt) -> bool:
        """Whether both say what they ask, and it is not the same."""
        pairs = ((self.messages, other.messages), (self.token_ids, other.token_ids))
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def grouped(
    rows: Iterable[LoggedRow], columns: LogColumns, skip: list[RowRefused] | None = None
) -> list[LoggedPrompt]:
    """The prompts of the rows with their answers, in order of first appearance; held in memory.

    `skip`: takes the errors of unfit rows, which are left out; None: the first one is raised.
    """
    prompts: dict[str, LoggedPrompt] = {}
    for row in rows:
        try:
            logged, answers = _read(row, columns)
            known = prompts.setdefault(logged.key, logged)
            if known.is_another(logged):
                raise row.refused(f"its id '{logged.prompt_id}' is that of another prompt of the files")
        except RowRefused as error:
            if skip is None:
                raise
            skip.append(error)
            continue
        known.answers.extend(answers)
    return list(prompts.values())


def _read(row: LoggedRow, columns: LogColumns) -> tuple[LoggedPrompt, list[LoggedAnswer]]:
    found = columns.of(row)
    messages = as_messages(row, found["prompt"]) if "prompt" in found else None
    ids = _integers(row, "prompt_ids", found["prompt_ids"]) if "prompt_ids" in found else None
    if messages is None and ids is None:
        if columns.is_empty(row, "prompt", "prompt_ids"):
            raise row.refused("its prompt is empty")
        raise row.refused(
            f"it has no prompt; its columns are {', '.join(row.values) or 'none'}: name one, as in --columns"
            " prompt=question"
        )
    if messages and messages[-1]["role"] == "assistant" and "answer" not in found:
        found["answer"] = messages.pop()["content"]
    prompt_id = str(found.get("id", ""))
    if "answer" not in found and "token_ids" not in found and columns.is_empty(row, "answer", "token_ids"):
        raise row.refused("its answer is empty")
    key = prompt_id or repr(messages if messages is not None else ids)
    answers = [LoggedAnswer(row, one) for one in _answers(row, found)]
    for answer in answers:
        _check(answer)
    return LoggedPrompt(key, prompt_id, messages, ids, columns.free(row)), answers


def as_messages(row: LoggedRow, prompt: Any) -> list[dict[str, Any]]:
    """A prompt that is text, or messages, as messages. Raises `RowRefused` for anything else."""
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    is_conversation = isinstance(prompt, list) and all(
        isinstance(one, dict) and {"role", "content"} <= set(one) for one in prompt
    )
    if prompt and is_conversation:
        return [dict(one) for one in prompt]
    raise row.refused(f"its prompt {_short(prompt)} is neither text nor messages with role and content")


def _answers(row: LoggedRow, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What belongs to each answer: the row's values where there is one, else the elements of its lists."""
    given = {name: found[name] for name in OF_ANSWER if name in found}
    if "answer" not in given and "token_ids" not in given:
        raise row.refused(
            f"it has no answer; its columns are {', '.join(row.values)}: name one, as in --columns answer=output"
        )
    leading = "answer" if "answer" in given else "token_ids"
    is_many = isinstance(given[leading], list) and (
        leading == "answer" or (bool(given[leading]) and isinstance(given[leading][0], list))
    )
    if not is_many:
        return [given]
    count = len(given[leading])
    if not count:
        raise row.refused("its list of answers is empty")
    for name, value in given.items():
        if not isinstance(value, list) or len(value) != count:
            raise row.refused(
                f"it has {count} answers, but {name} is {_short(value)}: a list of {count} is needed"
            )
    return [
        {name: value[place] for name, value in given.items() if value[place] is not None}
        for place in range(count)
    ]


def _check(answer: LoggedAnswer) -> None:
    row, found = answer.row, answer.values
    if "answer" in found and not isinstance(found["answer"], str):
        raise row.refused(f"its answer {_short(found['answer'])} is no text")
    if "token_ids" not in found and not found.get("answer"):
        raise row.refused("its answer is empty")
    count = len(_integers(row, "token_ids", found["token_ids"])) if "token_ids" in found else None
    for name in ("logprobs", "loss_mask"):
        if name in found and (not isinstance(found[name], list) or len(found[name]) != count):
            raise row.refused(f"its {name} are not one for each of its {count or 'missing'} token_ids")
    for value in found.get("logprobs", ()):
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not value <= 0
            or math.isinf(value)
        ):
            raise row.refused(f"its log-prob {value!r} is not a finite number of at most 0")
    if found.get("finish_reason", "stop") not in ("stop", "length"):
        raise row.refused(f"its finish_reason {found['finish_reason']!r} is neither 'stop' nor 'length'")
    scores_of(answer, "score")


def scores_of(answer: LoggedAnswer, name: str) -> dict[str, float]:
    """Its scores by source; a plain number is of `name`. Raises `RowRefused` for what is no finite number."""
    given = answer.values.get("score")
    if given is None:
        return {}
    several = given if isinstance(given, dict) else {name: given}
    return {str(one): number(answer.row, value) for one, value in several.items() if value is not None}


def number(row: LoggedRow, value: Any) -> float:
    """A score as a number; texts of csv files too. Raises `RowRefused`."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise row.refused(f"its score {_short(value)} is no finite number")
    return found


def _integers(row: LoggedRow, name: str, value: Any) -> list[int]:
    is_fit = isinstance(value, list) and value and all(type(one) is int and 0 <= one < 2**31 for one in value)
    if not is_fit:
        raise row.refused(f"its {name} {_short(value)} are no list of token ids")
    return list(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
