"""The turns of one conversation as tokens: what is told of them, and what of an earlier attempt they go on from.

Places are counted among the sampled tokens of all turns. A turn of an earlier attempt is taken over where the same
tokens lead to it: an environment that answers otherwise makes another conversation from there on.
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from swift_rlx.backends import OnProgress
from swift_rlx.backends.progress import sampled_part, section, shared_tokens
from swift_rlx.types import Chunk, Completion, FinishReason, IntArray, Turn


@dataclass(frozen=True)
class Recorded:
    """What an earlier attempt made of a turn, from place 0 of the turn on; `finish_reason`: None for a part of it."""

    part: Chunk
    finish_reason: FinishReason | None


class Turns:
    """The turns so far. `prefix`: of an earlier attempt; `on_progress`: told of their tokens."""

    def __init__(self, prefix: Chunk | None, on_progress: OnProgress) -> None:
        self.completions: list[Completion] = []
        self._earlier = prefix
        self._on_progress = on_progress
        self._turns: list[Turn] = []
        self._begin = self._told = 0

    @property
    def num_tokens(self) -> int:
        """Of the turns that have ended."""
        return sum(one.num_tokens for one in self.completions)

    def begin(self, prompt_ids: IntArray) -> Recorded | None:
        """A turn that answers these tokens begins; what there is of it already."""
        turn = Turn(self._begin, context_of(prompt_ids))
        recorded = self._recorded(turn)
        if recorded is None or recorded.finish_reason is None:
            self._earlier = None
        self._turns.append(turn)
        self._told = self._begin + (0 if recorded is None else recorded.part.num_tokens)
        self._signal()
        return recorded

    def tell(self, chunk: Chunk) -> None:
        """The worker made tokens of the turn; the chunk's places are those of the turn."""
        self._told = self._begin + chunk.end
        self._on_progress(replace(chunk, begin=self._begin + chunk.begin, turns=tuple(self._turns)))

    def end(self, completion: Completion, recorded: Recorded | None = None) -> None:
        """The turn has ended; `recorded`: what it went on from, unless the worker began anew."""
        whole, told = sampled_part(completion), self._told - self._begin
        if recorded is not None and shared_tokens(recorded.part, whole) < recorded.part.num_tokens:
            told = 0
        turn, end = self._turns[-1], self._begin + whole.num_tokens
        self._turns[-1] = replace(turn, end=end, finish_reason=completion.finish_reason)
        self.completions.append(completion)
        if told < whole.num_tokens:
            self.tell(section(whole, told, whole.num_tokens))
        self._begin = end
        self._signal()

    def _recorded(self, turn: Turn) -> Recorded | None:
        number, earlier = len(self._turns), self._earlier
        if earlier is None or number >= len(earlier.turns):
            return None
        before = earlier.turns[number]
        end = earlier.end if before.end is None else min(before.end, earlier.end)
        if (before.begin, before.context) != (turn.begin, turn.context) or end <= turn.begin:
            return None
        part = replace(section(earlier, turn.begin, end), begin=0, turns=())
        return Recorded(part, before.finish_reason if before.end == end else None)

    def _signal(self) -> None:
        """Tell where the conversation is, and that what an earlier attempt made behind this place is of no use."""
        place = self._told if self._earlier is None else self._earlier.end
        none = np.zeros(0, np.int32)
        self._on_progress(Chunk(place, none, none.astype(np.float32), none, turns=tuple(self._turns)))


def context_of(token_ids: IntArray) -> int:
    """A digest of the tokens that a turn answers."""
    digest = hashlib.blake2b(np.ascontiguousarray(token_ids, np.int32).tobytes(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")
