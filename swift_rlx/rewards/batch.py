"""The rows that one call of a reward scores, and the arguments that the reward's function gets for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift_rlx.errors import RewardError
from swift_rlx.rewards.columns import SUPPLIED_IF_PRESENT, missing_columns
from swift_rlx.rewards.spec import RewardSpec


@dataclass(frozen=True)
class Call:
    """Arguments of one call of the reward's function. `num_rows` values are expected back.

    is_single: one completion, for which one value comes back, and not a list of one.
    """

    first: Any
    columns: dict[str, Any]
    num_rows: int
    is_single: bool = False


class RewardBatch:
    """Completions and their columns, reduced to what one reward accepts.

    A column that is a list or tuple has one value per row; anything else (`trainer_state`) is shared by all
    rows. Lists are handed to the reward as copies, so that a reward which changes its arguments disturbs no
    other.

    Raises RewardError: a required column is absent, or a list has not one value per row.
    """

    def __init__(self, spec: RewardSpec, completions: Sequence[Any], columns: Mapping[str, Any]) -> None:
        self._completions = list(completions)
        self._messages = columns.get("messages")
        self._columns = _accepted(spec, columns, len(self._completions))
        for name, value in self._columns.items():
            if _per_row(value) and len(value) != len(self):
                raise RewardError(
                    f"{spec.label} was given {len(value)} values of column {name!r} for {len(self)} "
                    "completions"
                )

    def __len__(self) -> int:
        return len(self._completions)

    def whole(self) -> Call:
        """All rows, for a list-form reward."""
        columns = {name: list(v) if _per_row(v) else v for name, v in self._columns.items()}
        return Call(list(self._completions), columns, len(self))

    def slice_of(self, row: int) -> Call:
        """One row as lists of length 1, for a list-form reward."""
        columns = {name: [v[row]] if _per_row(v) else v for name, v in self._columns.items()}
        return Call([self._completions[row]], columns, 1)

    def single(self, row: int) -> Call:
        """One row as plain values, for a per-completion reward."""
        columns = {name: v[row] if _per_row(v) else v for name, v in self._columns.items()}
        return Call(self._completions[row], columns, 1, is_single=True)

    def describe(self, row: int) -> str:
        """The row for a message: its index, the start of its completion and of its prompt.

        The only row of a call has no index: it is the caller's, who knows it by another one.
        """
        which = f"row {row}" if len(self) > 1 else "the row"
        text = f"{which} (completion {_start(self._completions[row])}"
        prompt = self._prompt(row)
        return f"{text}, prompt {_start(prompt)})" if prompt is not None else f"{text})"

    def _prompt(self, row: int) -> Any:
        if not isinstance(self._messages, list | tuple) or row >= len(self._messages):
            return None
        turns = [turn for turn in self._messages[row] or () if isinstance(turn, Mapping)]
        asked = [turn.get("content") for turn in turns if turn.get("role") == "user"]
        return asked[-1] if asked else None


def _accepted(spec: RewardSpec, columns: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    named = {*spec.required_columns, *spec.optional_columns}
    refused = {spec.first_parameter, *spec.bound_columns}
    accepted = {
        name: value
        for name, value in columns.items()
        if (spec.takes_any_column or name in named) and name not in refused
    }
    for name in spec.required_columns:
        if name not in accepted and name in SUPPLIED_IF_PRESENT:
            accepted[name] = [None] * num_rows
    if absent := [name for name in spec.required_columns if name not in accepted]:
        sentence = missing_columns([spec], columns)
        raise RewardError(sentence or f"{spec.label} needs {absent}, which this trainer does not supply")
    return accepted


def _per_row(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _start(text: Any, limit: int = 60) -> str:
    if not isinstance(text, str):
        text = str(text)
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
