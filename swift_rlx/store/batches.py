"""Batches of stored groups: the same on every rank and after every resume, each group at most `max_reuse` times.

The batch of an optimizer step follows from the random seed, the step, the ids of the groups that may train then, and
how often each was used; not from the shards that they are in, so that compaction changes nothing. Groups that were
used least come first, in random order: all are used once before one is used twice, and what is sealed during a run
trains soon.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import StoreError
from swift_rlx.store.group_facts import group_facts
from swift_rlx.store.selection import GroupFilter, Selection
from swift_rlx.store.snapshot import Snapshot

MAX_REUSE = 255


@dataclass(frozen=True, slots=True)
class BatchRules:
    """`groups`: of a batch. `max_reuse`: how often a group trains. `seed`: of the order."""

    groups: int
    max_reuse: int = 4
    seed: int = 0
    wanted: GroupFilter = field(default_factory=GroupFilter)


class GroupBatches:
    """See the module. `snapshot`: the groups' rows; numbers of groups are of it. Raises `StoreError` as `Selection`.

    On several ranks: give each the same `wanted.sealed` and the same calls.
    """

    def __init__(self, snapshot: Snapshot, rules: BatchRules) -> None:
        if rules.groups < 1 or not 1 <= rules.max_reuse <= MAX_REUSE:
            raise StoreError(
                f"batches of {rules.groups} groups, each at most {rules.max_reuse} times, are refused; use at least 1"
                f" group, and 1 to {MAX_REUSE} times"
            )
        self.snapshot, self.rules = snapshot, rules
        self._by_id = np.argsort(snapshot.group_ids(), kind="stable")  # [G]; what follows is in this order
        self.selection = Selection(group_facts(snapshot).in_order(self._by_id), rules.wanted, snapshot.url)
        self._uses = np.zeros(snapshot.num_groups, np.uint8)

    @property
    def num_uses(self) -> int:
        """Groups handed out so far, each time counted."""
        return int(self._uses.sum(dtype=np.int64))

    def num_left(self, step: int) -> int:
        """How often a group may still be handed out at that step, all together."""
        left = self.rules.max_reuse - self._uses[self.selection.at(step)].astype(np.int64)
        return int(left.clip(min=0).sum())

    def num_ready(self, step: int) -> int:
        """How many groups may be handed out at that step: the most that a batch can have."""
        return int((self.selection.at(step) & (self._uses < self.rules.max_reuse)).sum())

    def take(self, step: int, groups: int | None = None) -> tuple[int, ...]:
        """The groups of that optimizer step's batch, counted as used; fewer where no more may train.

        `groups`: how many, by default as many as the rules say.
        """
        wanted = self.rules.groups if groups is None else groups
        generator = np.random.Generator(np.random.Philox(key=[self.rules.seed % 2**64, step % 2**64]))
        may_train = self.selection.at(step)
        taken: list[int] = []
        for uses in range(self.rules.max_reuse):
            candidates = np.flatnonzero(may_train & (self._uses == uses))
            count = min(wanted - len(taken), len(candidates))
            taken += candidates[generator.choice(len(candidates), count, replace=False)].tolist()
            if len(taken) == wanted:
                break
        self._uses[taken] += 1
        return tuple(self._by_id[taken].tolist())

    def mean_uses(self, groups: Sequence[int]) -> float:
        """How often these groups were handed out, on average."""
        return float(self._uses[np.isin(self._by_id, np.asarray(groups, np.int64))].mean())

    @property
    def sealed(self) -> dict[str, int]:
        """Of each writer the last round that counts."""
        return dict(self.rules.wanted.sealed or self.snapshot.manifest.sealed)

    def moved_to(
        self, snapshot: Snapshot, sealed: Mapping[str, int] | None = None, recipe: str | None = None
    ) -> GroupBatches:
        """Batches of a later snapshot of the same store, with the uses so far; its further groups have none.

        `sealed`: the rounds that count from now on, None: all; ranks must agree on them. `recipe`: of the rewards from
        now on, None: as before.
        """
        wanted = replace(self.rules.wanted, sealed=snapshot.manifest.sealed if sealed is None else sealed)
        wanted = replace(wanted, recipe=wanted.recipe if recipe is None else recipe)
        moved = GroupBatches(snapshot, replace(self.rules, wanted=wanted))
        moved._set_uses(*self._used())
        return moved

    def save(self, path: Path) -> None:
        """Write what `restored` needs: an Arrow file. Raises `StoreError` where it cannot be written."""
        import pyarrow as pa

        ids, uses = self._used()
        table = pa.table({"group_id": ids, "uses": uses}, metadata={"sealed": json.dumps(self.sealed)})
        try:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
        except OSError as error:
            raise StoreError(f"'{path}' cannot be written: {error}") from error

    @classmethod
    def restored(cls, snapshot: Snapshot, rules: BatchRules, path: Path) -> GroupBatches:
        """Go on where `save` was called: the same groups, whatever was sealed or compacted since.

        Raises `StoreError` where the file cannot be read, or groups that were used are not in the store any more.
        """
        import pyarrow as pa

        try:
            with pa.OSFile(str(path), "rb") as file:
                table = pa.ipc.open_stream(file).read_all()
            sealed = json.loads(table.schema.metadata[b"sealed"])
            ids, uses = table.column("group_id").to_numpy(), table.column("uses").to_numpy()
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"'{path}' holds no state of batches: {error}") from error
        wanted = rules.wanted if rules.wanted.sealed is not None else replace(rules.wanted, sealed=sealed)
        batches = cls(snapshot, replace(rules, wanted=wanted))
        if missing := len(ids) - batches._set_uses(ids, uses):
            raise StoreError(
                f"{missing} of {len(ids)} groups that were trained on are not in the store '{snapshot.url}' any more;"
                " give the store that the run began with"
            )
        return batches

    def _used(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """The ids of the groups that were used, and how often each was."""
        used = np.flatnonzero(self._uses)
        return self.snapshot.group_ids()[self._by_id[used]], self._uses[used]

    def _set_uses(self, ids: npt.NDArray[np.uint64], uses: npt.NDArray[np.uint8]) -> int:
        """Note the uses of groups; how many of them are here."""
        own = self.snapshot.group_ids()[self._by_id]
        places = np.searchsorted(own, ids)
        is_here = places < len(own)
        is_here[is_here] = own[places[is_here]] == ids[is_here]
        self._uses[places[is_here]] = uses[is_here]
        return int(is_here.sum())
