"""How often each stored group has trained in a hybrid run, so that none trains more than `--max_reuse` times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from swift_rlx.errors import CheckpointError, ConfigError, SchedulingError

MAX_REUSE = 4


class ReuseLedger:
    """Counts by the key of a group. Its first training, as a fresh group, is none of them.

    `max_reuse`: None = without a limit, as in a run that is offline altogether, which trains in epochs.
    """

    def __init__(self, max_reuse: int | None = MAX_REUSE, uses: Mapping[str, int] | None = None) -> None:
        if max_reuse is not None and max_reuse < 1:
            raise ConfigError(
                f"--max_reuse {max_reuse} is refused: a stored group has to train at least once"
            )
        self.max_reuse = max_reuse
        self._uses = Counter(uses or {})
        bad = {key: count for key, count in self._uses.items() if not isinstance(count, int) or count < 0}
        if bad:
            raise CheckpointError(f"the counts of reuse cannot be read: {next(iter(bad.items()))}")

    def uses(self, key: str) -> int:
        """How often it has trained from the store."""
        return self._uses[key]

    def allows(self, key: str) -> bool:
        """Whether it may train once more."""
        return self.max_reuse is None or self._uses[key] < self.max_reuse

    def use(self, keys: Iterable[str]) -> None:
        """These groups train now. Raises `SchedulingError` for one that may not, and then counts none of them."""
        counted = Counter(keys)
        for key, count in counted.items():
            if self.max_reuse is not None and self._uses[key] + count > self.max_reuse:
                raise SchedulingError(
                    f"stored group {key} would train {self._uses[key] + count} times of {self.max_reuse}"
                )
        self._uses.update(counted)

    def forget(self, keys: Iterable[str]) -> None:
        """Groups that have left the store."""
        for key in keys:
            self._uses.pop(key, None)

    @property
    def state(self) -> dict[str, int]:
        """What a checkpoint keeps: the groups that have trained from the store."""
        return dict(+self._uses)
