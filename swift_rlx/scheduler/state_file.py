"""A `RolloutState` as a directory.

    trajectories.arrow   the groups that wait, in the format of `swift_rlx.store`
    state.json           everything else; written last, and naming the file that it belongs to

Nothing in it is pickled. A directory that lacks something, or whose files do not belong together, is refused.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from swift_rlx.errors import CheckpointError, StoreError
from swift_rlx.scheduler.capacity import CapacityCounts
from swift_rlx.scheduler.journal_entries import PickedUp, by_fate, by_name
from swift_rlx.scheduler.resume import OpenPrompt, RolloutState
from swift_rlx.store import ShardWriter, read_shard
from swift_rlx.types import DropReason, PolicyVersion, TrajectoryGroup

FORMAT = 2
STATE, TRAJECTORIES = "state.json", "trajectories.arrow"
SNAPSHOT = "snapshot"
"""Key of a random name that both files have."""
GROUPS_A_UNIT = 64


def save_state(state: RolloutState, directory: Path) -> None:
    """Write the directory, which may exist. Raises `CheckpointError` where that cannot be done."""
    directory.mkdir(parents=True, exist_ok=True)
    name = secrets.token_hex(8)
    unfinished = directory / f"{TRAJECTORIES}.unfinished"
    unfinished.unlink(missing_ok=True)
    groups = [one.ready for one in state.open if one.ready is not None]
    try:
        writer = ShardWriter(unfinished, {SNAPSHOT: name})
        try:
            for begin in range(0, len(groups), GROUPS_A_UNIT):
                writer.add(groups[begin : begin + GROUPS_A_UNIT])
                writer.flush()
        finally:
            writer.close()
    except StoreError as error:
        raise CheckpointError(f"the answers that wait for their training cannot be saved: {error}") from error
    os.replace(unfinished, directory / TRAJECTORIES)
    unfinished = directory / f"{STATE}.unfinished"
    unfinished.write_text(json.dumps(_plain(state) | {SNAPSHOT: name}), encoding="utf-8")
    os.replace(unfinished, directory / STATE)


def load_state(directory: Path) -> RolloutState:
    """Read what `save_state` wrote; prompts are stand-ins. Raises `CheckpointError` where it is not whole."""
    try:
        plain = _read(directory)
        shard = read_shard(directory / TRAJECTORIES)
        if shard.cut_bytes or shard.metadata.get(SNAPSHOT) != plain[SNAPSHOT]:
            raise ValueError(f"{TRAJECTORIES} is torn, or belongs to another {STATE}")
        ready = {group.order: group for unit in shard.units for group in unit.groups}
        return _state(plain, ready)
    except (OSError, ValueError, KeyError, TypeError, StoreError) as error:
        raise CheckpointError(
            f"rollout state in '{directory}' is not whole ({type(error).__name__}: {error}); resume from another"
            " checkpoint, or remove the directory to generate the waiting prompts again"
        ) from error


def journal_of(directory: Path) -> str | None:
    """`RolloutState.journal` of what is saved there; None where nothing is, or it cannot be read."""
    try:
        name = _read(directory)["journal"]
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        return None
    return str(name)


def _read(directory: Path) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads((directory / STATE).read_text(encoding="utf-8"))
    if plain["format"] != FORMAT:
        raise CheckpointError(
            f"rollout state in '{directory}' has format {plain['format']}, and this version reads {FORMAT}; resume it"
            " with the version that wrote it"
        )
    return plain


def _plain(state: RolloutState) -> dict[str, Any]:
    counts = state.capacity
    return {
        "format": FORMAT,
        "version": [state.version.incarnation, state.version.step],
        "group_size": state.group_size,
        "capacity": {name: getattr(counts, name) for name in CapacityCounts.__dataclass_fields__},
        "trained": state.trained,
        "dropped": {reason.value: count for reason, count in state.dropped.items()},
        "regenerated": state.regenerated,
        "tokens": by_name(state.tokens),
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
                "is_ready": one.ready is not None,
                "held": one.held,
                "lost": by_name(one.lost),
            }
            for one in state.open
        ],
        "replay": [[one.step, one.orders, one.unfinished, one.waited] for one in state.replay],
        "journal": state.journal,
    }


def _state(plain: dict[str, Any], ready: dict[int, TrajectoryGroup]) -> RolloutState:
    counts = plain["capacity"] | {
        "picks": tuple((step, groups) for step, groups in plain["capacity"]["picks"])
    }
    return RolloutState(
        version=PolicyVersion(*plain["version"]),
        group_size=plain["group_size"],
        capacity=CapacityCounts(**counts),
        open=tuple(_open_prompt(one, ready) for one in plain["open"]),
        trained=plain["trained"],
        dropped={DropReason(reason): count for reason, count in plain["dropped"].items()},
        regenerated=plain["regenerated"],
        tokens=by_fate(plain["tokens"]),
        staleness={int(age): count for age, count in plain["staleness"].items()},
        retries=plain["retries"],
        failovers=plain["failovers"],
        failures=plain["failures"],
        repeated_tokens=plain["repeated_tokens"],
        replay=tuple(
            PickedUp(step, tuple(orders), unfinished, waited)
            for step, orders, unfinished, waited in plain["replay"]
        ),
        journal=plain["journal"],
    )


def _open_prompt(plain: dict[str, Any], ready: dict[int, TrajectoryGroup]) -> OpenPrompt:
    order = plain["order"]
    group = ready[order] if plain["is_ready"] else None
    lost = by_fate(plain["lost"])
    return OpenPrompt(plain["index"], plain["epoch"], order, plain["rounds"], group, plain["held"], lost)
