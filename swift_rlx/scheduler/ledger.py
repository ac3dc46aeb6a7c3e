"""What became of every generated token that arrived, or that a failure reported. The fates sum to that, at any moment.

How many more tokens a worker had made that died, or that did not even end an answer when told to, nobody knows: they
are in no fate.
"""

from __future__ import annotations

from collections.abc import Mapping

from swift_rlx.errors import SchedulingError
from swift_rlx.types import Fate


class TokenLedger:
    """Counts tokens by fate. They arrive in flight, and are settled once. `tokens`: counted before a restart."""

    def __init__(self, tokens: Mapping[Fate, int] | None = None) -> None:
        self._tokens = dict.fromkeys(Fate, 0) | dict(tokens or {})
        self._generated = sum(self._tokens.values())

    @property
    def generated(self) -> int:
        """Tokens that arrived."""
        return self._generated

    def arrived(self, tokens: int) -> None:
        """A backend handed over tokens, or reported that they are lost."""
        self._generated += tokens
        self._tokens[Fate.IN_FLIGHT] += tokens

    def settle(self, fate: Fate, tokens: int) -> None:
        """Tokens that were in flight found their end. Raises `SchedulingError` for more than there are."""
        if tokens < 0 or tokens > self._tokens[Fate.IN_FLIGHT] or fate is Fate.IN_FLIGHT:
            raise SchedulingError(
                f"{tokens} tokens cannot become '{fate.value}': {self._tokens[Fate.IN_FLIGHT]} are in flight"
            )
        self._tokens[Fate.IN_FLIGHT] -= tokens
        self._tokens[fate] += tokens

    def tokens(self, fate: Fate) -> int:
        """Tokens with this fate now."""
        return self._tokens[fate]

    def shares(self) -> Mapping[Fate, float]:
        """Share of the generated tokens by fate; sums to 1. All zero before the first token."""
        return {fate: tokens / max(self._generated, 1) for fate, tokens in self._tokens.items()}

    def check(self, held: int) -> None:
        """Raise `SchedulingError` unless the `held` tokens, of groups and answers that have not ended, are in flight.

        Who forgets to settle the tokens of a group that ended, or settles them without need, is found here.
        """
        if (found := self._tokens[Fate.IN_FLIGHT]) != held:
            raise SchedulingError(
                f"{found} of {self._generated} tokens are counted as in flight, but the groups and answers that have"
                f" not ended hold {held}"
            )
