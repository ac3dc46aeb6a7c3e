"""A `RolloutState` as a directory: `state.json`, and the tokens of all answers end to end in four `.npy` files.

    state.json         everything but tokens; each answer says how many of them are its own; written last
    token_ids.npy      int32 [N]
    logprobs.npy       float32 [N]
    policy_steps.npy   int32 [N]
    sampled.npy        bool [N], True throughout for an answer without environment tokens

Nothing in it is pickled. A directory that lacks something, or in which lengths do not agree, is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import CheckpointError
from swift_rlx.scheduler.capacity import CapacityCounts
from swift_rlx.scheduler.resume import OpenPrompt, RolloutState
from swift_rlx.types import (
    Completion,
    DropReason,
    Fate,
    FinishReason,
    PolicyVersion,
    Prompt,
    RewardPart,
    Score,
    Trajectory,
    TrajectoryGroup,
)

FORMAT = 1
ARRAYS: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "logprobs": np.float32,
    "policy_steps": np.int32,
    "sampled": np.bool_,
}
Arrays = dict[str, npt.NDArray[Any]]


def save_state(state: RolloutState, directory: Path) -> None:
    """Write the directory, which may exist. Raises `CheckpointError` for an `info` that JSON cannot hold."""
    directory.mkdir(parents=True, exist_ok=True)
    completions = list(_completions(state))
    try:
        text = json.dumps(_plain(state))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"Completion.info of a waiting answer cannot be saved: {error}; use text, numbers, lists and dicts"
        ) from error
    for name, dtype in ARRAYS.items():
        parts = [_array(one, name) for one in completions]
        np.save(directory / f"{name}.npy", np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype))
    unfinished = directory / "state.json.unfinished"
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, directory / "state.json")


def load_state(directory: Path) -> RolloutState:
    """Read what `save_state` wrote; prompts are stand-ins. Raises `CheckpointError` where it is not whole."""
    try:
        plain = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        arrays = {name: np.load(directory / f"{name}.npy", allow_pickle=False) for name in ARRAYS}
        if plain["format"] != FORMAT:
            raise CheckpointError(
                f"rollout state in '{directory}' has format {plain['format']}, and this version reads {FORMAT};"
                " resume it with the version that wrote it"
            )
        return _state(plain, arrays)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"rollout state in '{directory}' is not whole ({type(error).__name__}: {error}); resume from another"
            " checkpoint, or remove the directory to generate the waiting prompts again"
        ) from error


def _completions(state: RolloutState) -> Iterator[Completion]:
    for one in state.open:
        if one.ready is not None:
            yield from (member.completion for member in one.ready.members)


def _array(completion: Completion, name: str) -> npt.NDArray[Any]:
    if name == "sampled" and completion.sampled is None:
        return np.ones(completion.num_tokens, np.bool_)
    array: npt.NDArray[Any] = getattr(completion, name)
    return array


def _plain(state: RolloutState) -> dict[str, Any]:
    counts = state.capacity
    return {
        "format": FORMAT,
        "tokens_saved": sum(one.num_tokens for one in _completions(state)),
        "version": [state.version.incarnation, state.version.step],
        "group_size": state.group_size,
        "capacity": {name: getattr(counts, name) for name in CapacityCounts.__dataclass_fields__},
        "trained": state.trained,
        "dropped": {reason.value: count for reason, count in state.dropped.items()},
        "regenerated": state.regenerated,
        "tokens": {fate.value: count for fate, count in state.tokens.items()},
        "staleness": {str(age): count for age, count in state.staleness.items()},
        "retries": state.retries,
        "failovers": state.failovers,
        "failures": dict(state.failures),
        "repeated_tokens": state.repeated_tokens,
        "open": [
            {
                "index": one.index,
                "epoch": one.epoch,
                "order": one.order,
                "rounds": one.rounds,
                "ready": None if one.ready is None else _plain_group(one.ready),
            }
            for one in state.open
        ],
    }


def _plain_group(group: TrajectoryGroup) -> dict[str, Any]:
    return {"failed": group.failed, "members": [_plain_member(member) for member in group.members]}


def _plain_member(member: Trajectory) -> dict[str, Any]:
    one = member.completion
    return {
        "member": member.member,
        "attempts": member.attempts,
        "scored_s": member.scored_s,
        "reward": member.score.reward,
        "breakdown": [[part.name, part.value, part.version] for part in member.score.breakdown],
        "num_tokens": one.num_tokens,
        "has_environment": one.sampled is not None,
        "finish_reason": one.finish_reason.value,
        "incarnation": one.incarnation,
        "worker": one.worker,
        "times": [one.submit_s, one.start_s, one.first_token_s, one.finish_s],
        "info": dict(one.info),
    }


def _state(plain: dict[str, Any], arrays: Arrays) -> RolloutState:
    for name, dtype in ARRAYS.items():
        if arrays[name].shape != (plain["tokens_saved"],) or arrays[name].dtype != dtype:
            raise ValueError(f"{name}.npy holds {arrays[name].shape} {arrays[name].dtype}")
    counts = plain["capacity"] | {
        "picks": tuple((step, groups) for step, groups in plain["capacity"]["picks"])
    }
    reader = _Reader(arrays)
    open_prompts = tuple(reader.open_prompt(one) for one in plain["open"])
    if reader.position != plain["tokens_saved"]:
        raise ValueError(f"{plain['tokens_saved']} tokens were saved for answers of {reader.position}")
    return RolloutState(
        version=PolicyVersion(*plain["version"]),
        group_size=plain["group_size"],
        capacity=CapacityCounts(**counts),
        open=open_prompts,
        trained=plain["trained"],
        dropped={DropReason(reason): count for reason, count in plain["dropped"].items()},
        regenerated=plain["regenerated"],
        tokens={Fate(fate): count for fate, count in plain["tokens"].items()},
        staleness={int(age): count for age, count in plain["staleness"].items()},
        retries=plain["retries"],
        failovers=plain["failovers"],
        failures=plain["failures"],
        repeated_tokens=plain["repeated_tokens"],
    )


class _Reader:
    """Cuts the answers' tokens out of the arrays, in the order in which they were written."""

    def __init__(self, arrays: Arrays) -> None:
        self.position = 0
        self._arrays = arrays

    def open_prompt(self, plain: dict[str, Any]) -> OpenPrompt:
        prompt = Prompt(plain["index"], np.zeros(0, np.int32), plain["epoch"])
        ready = None
        if plain["ready"] is not None:
            members = tuple(self._member(prompt, one) for one in plain["ready"]["members"])
            ready = TrajectoryGroup(
                prompt, plain["order"], members, plain["ready"]["failed"], plain["rounds"]
            )
        return OpenPrompt(plain["index"], plain["epoch"], plain["order"], plain["rounds"], ready)

    def _member(self, prompt: Prompt, plain: dict[str, Any]) -> Trajectory:
        begin, self.position = self.position, self.position + plain["num_tokens"]
        own = {name: array[begin : self.position] for name, array in self._arrays.items()}
        submit_s, start_s, first_token_s, finish_s = plain["times"]
        completion = Completion(
            token_ids=own["token_ids"],
            logprobs=own["logprobs"],
            policy_steps=own["policy_steps"],
            finish_reason=FinishReason(plain["finish_reason"]),
            incarnation=plain["incarnation"],
            worker=plain["worker"],
            submit_s=submit_s,
            start_s=start_s,
            first_token_s=first_token_s,
            finish_s=finish_s,
            sampled=own["sampled"] if plain["has_environment"] else None,
            info=plain["info"],
        )
        parts = tuple(RewardPart(name, value, version) for name, value, version in plain["breakdown"])
        score = Score(plain["reward"], parts)
        return Trajectory(prompt, plain["member"], completion, score, plain["scored_s"], plain["attempts"])
