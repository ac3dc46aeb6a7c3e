"""What the kinds of servers have in common: how each is asked, and what it has to be able to do."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swift_rlx.backends.remote_answer import WirePiece
from swift_rlx.backends.remote_endpoint import Endpoint
from swift_rlx.backends.remote_http import Call, HttpClient
from swift_rlx.backends.weights import WeightKind
from swift_rlx.types import FloatArray, IntArray, SamplingParams

ANSWER_BYTES = 1 << 16
TOKEN_BYTES = 1 << 10
"""An answer has at most `ANSWER_BYTES` and this much a token: four times what servers send."""
STREAM_TOKENS = 16
"""Tokens that a server sends in one event after the first; more of them cost less, fewer are lost with a server."""


class ServerKind(enum.Enum):
    """Programs that we can talk to."""

    VLLM = "vLLM"
    SGLANG = "SGLang"


class Standing(enum.Enum):
    """What a server serves, as seen from one version."""

    SERVED = "served"
    PAUSED = "paused"
    """It answers nobody: a publishing broke off, or is under way."""
    LOST = "lost"
    """It serves others, or those that it started with."""


class Ability(enum.Enum):
    """What a server may lack."""

    TOKENS = "token ids in and out"
    LOGPROBS = "log-probs at the temperature"
    FILTERS = "log-probs under top_p, top_k or min_p"
    ADAPTERS = "LoRA adapters while it runs"
    WEIGHTS = "new weights while it runs"


@dataclass(frozen=True, slots=True)
class ServerNeeds:
    """What a run wants of its servers.

    `weights`: what is published. `keeps`: full weights go in beside answers in flight. `vocabulary`: of the trained
    model, and `model` the directory of the weights that it started from. `probe_ids`: a text for finding out what
    log-probs mean. `max_adapter_rank`: of the adapters that will be published.
    """

    weights: WeightKind
    vocabulary: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    keeps: bool = False
    model: str | None = None
    probe_ids: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    max_adapter_rank: int = 0

    @property
    def abilities(self) -> tuple[Ability, ...]:
        """All that a server has to have for the run."""
        one = self.sampling
        filters = one.top_p < 1 or one.top_k > 0 or one.min_p > 0
        weights = Ability.WEIGHTS if self.weights is WeightKind.FULL else Ability.ADAPTERS
        return (Ability.TOKENS, Ability.LOGPROBS, *((Ability.FILTERS,) if filters else ()), weights)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server turned out to be.

    `model`: its name there; `root`: what it was loaded from. `lacks`: what has to be changed, by ability.
    `max_adapter_rank`: None where it does not say. `is_open`: routes that change its weights take no key.
    """

    kind: ServerKind
    version: str
    model: str
    root: str
    max_model_len: int | None
    lacks: Mapping[Ability, str] = field(default_factory=dict)
    max_adapter_rank: int | None = None
    is_open: bool = False

    def keeps(self) -> bool:
        """Whether full weights can go in beside answers in flight, each token with its version."""
        return self.kind is ServerKind.VLLM

    def fault(self, endpoint: Endpoint, needs: ServerNeeds) -> str | None:
        """Why it cannot serve the run, with URL, cause and remedy; None: it can."""
        for ability in needs.abilities:
            if (change := self.lacks.get(ability)) is not None:
                return (
                    f"{endpoint.url} ({self.kind.value} {self.version}) lacks {ability.value}: {change}; swift-rlx"
                    f" doctor --endpoint {endpoint.url} prints the command that starts one as needed"
                )
        if needs.weights is WeightKind.FULL and needs.keeps and not self.keeps():
            return f"{endpoint.url} is {self.kind.value}, and the others of this run are vLLM: use one kind"
        if self.max_adapter_rank is not None and self.max_adapter_rank < needs.max_adapter_rank:
            return (
                f"{endpoint.url} takes adapters up to rank {self.max_adapter_rank}, and rank {needs.max_adapter_rank}"
                f" is trained: start it with --max-lora-rank {needs.max_adapter_rank}"
            )
        return None


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to be made. `wire_id`: its name on the server; `adapter`: None for the bare model."""

    wire_id: str
    token_ids: IntArray
    sampling: SamplingParams
    adapter: str | None = None

    @property
    def max_bytes(self) -> int:
        """That an event of the answer can have: some servers repeat in each what came before."""
        return ANSWER_BYTES + TOKEN_BYTES * self.sampling.max_tokens


class Dialect(Protocol):
    """How one kind of server is asked. Calls are plain data; what comes back is read by the method beside them.

    The methods that read raise `NoAnswer` for bytes that are none, the others what `HttpClient` raises.
    """

    @property
    def kind(self) -> ServerKind:
        """Which."""

    def generation(self, one: Generation) -> Call:
        """Ask for an answer in events."""

    def piece(self, data: bytes) -> WirePiece:
        """Read one of them. Raises `EventFault` for one that says that the answer has failed."""

    def goes_on(self, sampling: SamplingParams) -> bool:
        """Whether tokens count in the prompt as if the server had made them; only then it can go on behind some."""

    def aborting(self, wire_ids: Collection[str]) -> Sequence[Call]:
        """End these answers; each then comes with the tokens that it has."""

    def top_logprobs(self, one: Generation) -> Call:
        """Ask for an answer of one token, and for the most likely ones in its place."""

    def tops(self, body: bytes) -> Mapping[int, float]:
        """Read these: log-prob by token id."""

    async def scores(
        self, client: HttpClient, token_ids: IntArray, places: IntArray, adapter: str | None
    ) -> FloatArray:
        """Log-probs of the tokens of a text at these places, 1 or above, each given all before it, [P].

        To be asked beside answers, of this client and of others.
        """

    async def facts(
        self, client: HttpClient, model: str, root: str, max_model_len: int | None
    ) -> ServerFacts:
        """What can be found out without generating."""

    async def unpause(self, client: HttpClient) -> None:
        """Let a server answer that an ended run left paused. Raises `BackendUnfit` where its weights are broken."""

    async def standing(self, client: HttpClient, label: str, weights: WeightKind) -> Standing:
        """Of the weights of this name."""

    async def take_adapter(self, client: HttpClient, label: str, directory: str) -> None:
        """Load an adapter under a new name."""

    async def drop_adapter(self, client: HttpClient, label: str) -> None:
        """Forget one that no answer uses."""

    async def take_weights(
        self, client: HttpClient, label: str, directory: str, begin: Callable[[], None]
    ) -> None:
        """Replace all weights; from then on they are called `label`.

        `begin` is called when the server has them, before it makes any token by them.
        """
