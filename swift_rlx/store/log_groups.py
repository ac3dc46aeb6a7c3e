"""From a logged prompt with its answers to the group that the store keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from swift_rlx.store.log_files import LoggedRow
from swift_rlx.store.log_rows import Encoder, LogColumns, LoggedAnswer, LoggedPrompt, scores_of
from swift_rlx.store.stored_group import StoredGroup
from swift_rlx.types import Completion, FinishReason, Prompt, RewardPart, Score, Trajectory, TrajectoryGroup


def to_group(logged: LoggedPrompt, order: int, columns: LogColumns, encoder: Encoder | None) -> StoredGroup:
    """The group of a prompt. Raises `StoreError` where token ids are missing and there is no encoder."""
    messages = logged.messages or []
    ids = logged.token_ids or _encoder(encoder, logged.answers[0].row).prompt(messages)
    kept = {**logged.columns, **({"messages": messages} if messages else {})}
    prompt = Prompt(order, np.asarray(ids, np.int32), columns=kept)
    scores = [scores_of(answer, columns.source.name) for answer in logged.answers]
    scored = zip(logged.answers, scores, rewards_of(scores), strict=True)
    members = tuple(
        Trajectory(
            prompt,
            member,
            _completion(answer, encoder, messages),
            Score(
                reward, tuple(RewardPart(name, value, columns.source.version) for name, value in one.items())
            ),
        )
        for member, (answer, one, reward) in enumerate(scored)
    )
    texts = tuple(answer.values.get("answer", "") for answer in logged.answers)
    return StoredGroup(
        TrajectoryGroup(prompt, order, members),
        texts if any(texts) else (),
        engine="imported",
        prompt_id=logged.prompt_id,
    )


def rewards_of(scores: Sequence[Mapping[str, float]]) -> list[float | None]:
    """The sum of each answer's scores by source; None where it has none.

    A source that an answer lacks leaves its weight to the others that it has, as in training, so that the answer stays
    on the scale of its siblings. `scores`: of the answers to one prompt.
    """
    sources = {name for one in scores for name in one}
    return [sum(one.values()) * len(sources) / len(one) if one else None for one in scores]


def _completion(answer: LoggedAnswer, encoder: Encoder | None, messages: list[dict[str, Any]]) -> Completion:
    found = answer.values
    ids: Sequence[int] = found.get("token_ids") or _encoder(encoder, answer.row).answer(
        messages, found["answer"]
    )
    logprobs = found.get("logprobs") or [math.nan] * len(ids)
    mask = found.get("loss_mask")
    return Completion(
        token_ids=np.asarray(ids, np.int32),
        logprobs=np.asarray(logprobs, np.float32),
        policy_steps=np.zeros(len(ids), np.int32),
        finish_reason=FinishReason(found.get("finish_reason", "stop")),
        sampled=None if mask is None else np.asarray(mask, np.bool_),
    )


def _encoder(encoder: Encoder | None, row: LoggedRow) -> Encoder:
    if encoder is None:
        raise row.refused(
            "it has text but no token ids; give the model whose tokenizer makes them: --model ID"
        )
    return encoder
