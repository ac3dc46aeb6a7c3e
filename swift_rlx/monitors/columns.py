"""Columns that say who made an answer, for the table of `--log_completions`."""

from __future__ import annotations

from swift_rlx.types import PolicyVersion, TrainGroup, Trajectory

COLUMNS = (
    "policy_version_min",
    "policy_version_max",
    "staleness",
    "trained_tokens",
    "worker",
    "attempts",
    "latency_s",
    "reward_versions",
)


def version_columns(group: TrainGroup, step: int) -> list[dict[str, str | int | float]]:
    """One row for each member of the group, with the keys `COLUMNS`.

    `step`: the trainer's optimizer step at the pick-up (`TrainBatch.step`). Policy versions are written as
    incarnation.step; `staleness` is that of the oldest token, trained or not; `reward_versions` are `name=version`
    of the rewards that have one.
    """
    rows: list[dict[str, str | int | float]] = []
    for member, mask in zip(group.group.members, group.loss_masks, strict=True):
        completion = member.completion
        oldest, newest = int(completion.sampled_steps[0]), int(completion.sampled_steps[-1])
        rows.append(
            {
                "policy_version_min": str(PolicyVersion(completion.incarnation, oldest)),
                "policy_version_max": str(PolicyVersion(completion.incarnation, newest)),
                "staleness": step - oldest,
                "trained_tokens": int(mask.sum()),
                "worker": completion.worker,
                "attempts": member.attempts,
                "latency_s": round(completion.finish_s - completion.submit_s, 3),
                "reward_versions": _reward_versions(member),
            }
        )
    return rows


def _reward_versions(member: Trajectory) -> str:
    return ", ".join(f"{part.name}={part.version}" for part in member.score.breakdown if part.version)
