"""Columns that rewards ask for, against what the data set has and what ms-swift makes of it.

Facts about ms-swift (4.5 and 4.6, `dataset/preprocessor/core.py` and `rl_core/data.py`):
- Rows that are not in `messages` form have their columns renamed: `answer` and its likes become the
  assistant's response, `question` and its likes the user's message. `solution` is kept beside.
- Columns that bear the name of one of its own fields are taken for that field and reach no reward.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swift_rlx.rewards.spec import RewardSpec

# Given to every reward by ms-swift, whatever the data set holds.
SUPPLIED = frozenset(
    [
        "messages",
        "prompt_id",
        "request_id",
        "finish_reason",
        "is_truncated",
        "rollout_infos",
        "response_token_ids",
        "trainer_state",
    ]
)
# Given where a row has them; a reward that requires one gets None for the rows without.
SUPPLIED_IF_PRESENT = frozenset(["images", "videos", "audios", "tools", "objects"])

_AS_RESPONSE = frozenset(
    [
        "response",
        "answer",
        "output",
        "targets",
        "target",
        "answer_key",
        "answers",
        "text",
        "completion",
        "content",
    ]
)
_AS_QUERY = frozenset(["query", "prompt", "input", "instruction", "question", "problem"])
_AS_SYSTEM = frozenset({"system", "system_prompt"})
_AS_MEDIA = {"image": "images", "video": "videos", "audio": "audios"}

_BREAKS = {
    "completions": "collides with the first parameter of every reward",
    "response_token_ids": "is trained on in place of the generated tokens",
    "response_loss_mask": "replaces the loss mask of the generated tokens",
    "rollout_logprobs": "replaces the log-probs of the generated tokens",
    "routed_experts": "replaces the routing of the generated tokens",
    "add_eos": "changes how completions are encoded",
}
_SWALLOWED = frozenset(
    ["rewards", "advantages", "prompt_id", "request_id", "finish_reason", "is_truncated", "rollout_infos"]
)
_OVERWRITTEN = {"dataset": "the path of the data set", "trainer_state": "the trainer's state"}


@dataclass(frozen=True)
class ReservedColumns:
    """Sentences about columns of the data set: `errors` break training, `warnings` never reach a reward."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def missing_columns(
    specs: Iterable[RewardSpec], available: Iterable[str], has_response: bool = True
) -> str | None:
    """A sentence for each reward that asks for columns which it will not get, joined; None where all is
    there.

    available: names of the data set's columns after ms-swift has prepared it. has_response: whether its messages end
    with one of the assistant; where not, ms-swift took no column for it.
    """
    columns = sorted(set(available))
    reachable = (set(columns) - _SWALLOWED - _BREAKS.keys()) | SUPPLIED | SUPPLIED_IF_PRESENT
    sentences = []
    for spec in specs:
        missing = [name for name in spec.required_columns if name not in reachable]
        if missing:
            own = [name for name in columns if name != "dataset"]  # ms-swift adds that one to every data set
            hints = "".join(f"; {_hint(name, own, has_response)}" for name in missing)
            sentences.append(f"{spec.label} needs columns {missing}, the data set has {own}{hints}")
    return "; ".join(sentences) or None


def reserved_columns(available: Iterable[str]) -> ReservedColumns:
    """What is wrong with the names of the data set's columns (after ms-swift has prepared it)."""
    names = set(available)
    errors = [
        f"the data set has a column {name!r}, which {effect}: rename it, for instance with "
        f"{_rename(name, name + '_')}"
        for name, effect in _BREAKS.items()
        if name in names
    ]
    warnings = [
        f"the data set's column {name!r} is taken for ms-swift's own field of that name and reaches no "
        "reward: rename "
        f"it, for instance with {_rename(name, name + '_')}"
        for name in sorted(names & _SWALLOWED)
    ]
    # ms-swift adds `dataset` to every data set, so its presence says nothing.
    warnings += [
        f"the data set's column {name!r} hides {meaning} from the rewards: rename it"
        for name, meaning in _OVERWRITTEN.items()
        if name in names and name != "dataset"
    ]
    return ReservedColumns(tuple(errors), tuple(warnings))


def _hint(name: str, columns: Sequence[str], has_response: bool) -> str:
    if name in _SWALLOWED or name in _BREAKS:
        return f"{name!r} is a field of ms-swift's own, so a column of that name reaches no reward: rename it"
    of_ms_swift = SUPPLIED | SUPPLIED_IF_PRESENT | _SWALLOWED | _BREAKS.keys()
    others = [one for one in columns if one not in of_ms_swift]
    if name in _AS_RESPONSE and not has_response:
        there = f", such as {' or '.join(map(repr, others))}" if others else ""
        return (
            f"the data set has no column {name!r}: let the reward read one that it has{there} ({name!r} is a name that"
            " ms-swift takes for the assistant's response)"
        )
    if name in _AS_RESPONSE:
        return (
            f"ms-swift takes a column {name!r} as the assistant's response: let the reward read another name "
            "and keep "
            f"the column under it with {_rename(name, 'solution')}, or pass --disable_auto_column_mapping "
            "true"
        )
    if name in _AS_QUERY or name in _AS_SYSTEM:
        return (
            f"ms-swift takes a column {name!r} as part of the prompt: let the reward read it from "
            "`messages`, or pass "
            "--disable_auto_column_mapping true"
        )
    if name in _AS_MEDIA:
        return f"ms-swift renames a column {name!r}: let the reward read {_AS_MEDIA[name]!r}"
    if not others:
        return f"add it to the rows, or a column of another name becomes {name!r} with {_rename('its name', name)}"
    [closest] = difflib.get_close_matches(name, others, n=1, cutoff=0.0)
    return f"a column of another name, such as {closest!r}, becomes {name!r} with {_rename(closest, name)}"


def _rename(old: str, new: str) -> str:
    return f"""--columns '{{"{old}": "{new}"}}'"""
