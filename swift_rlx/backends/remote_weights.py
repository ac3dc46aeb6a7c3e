"""The weights of one server: how they get in under a name, and whether they are what it answers with.

Every version has a name that no other run has, so weights of somebody else, or those that a server started with, are
never taken for ours. The files stay where they are until every worker has taken them; both machines have to see them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import numpy as np

from swift_rlx.backends.remote_answer import Labels, NoAnswer
from swift_rlx.backends.remote_dialect import Dialect, ServerNeeds, Standing
from swift_rlx.backends.remote_http import HttpClient
from swift_rlx.backends.vllm_weight_files import Shapes, shapes, weights_fault
from swift_rlx.backends.weights import WeightFiles, WeightKind
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, WeightMismatch, WorkerAbsent
from swift_rlx.types import FloatArray, IntArray, PolicyVersion

FOLDER_FLAG = "--rollout_shared_directory"
PROBE_PLACES = 12
"""Tokens of the probe that a server is asked for, from all over it: each may cost it two requests."""


class RemoteWeights:
    """`version`: that new requests get; None: none of this run. One publishing at a time."""

    def __init__(self, client: HttpClient, needs: ServerNeeds, labels: Labels) -> None:
        self.version: PolicyVersion | None = None
        self.live: PolicyVersion | None = None
        """That the server makes tokens by now, where its weights are replaced under answers in flight."""
        self.probe_difference: float | None = None
        """Nats, of the last weights that came with a probe."""
        self._client = client
        self._url = client.endpoint.url
        self._needs = needs
        self._labels = labels
        self._has_served = False
        self._loaded: list[str] = []
        self._base: Shapes | None = None

    def adapter(self, version: PolicyVersion) -> str | None:
        """The name by which a request asks for a version; None: it gets what the server has."""
        return self._labels.of(version) if self._needs.weights is WeightKind.ADAPTER else None

    async def publish(self, dialect: Dialect, version: PolicyVersion, files: WeightFiles) -> None:
        """Serve them to every request that starts from now on.

        Raises `WeightMismatch` where the first weights do not come out as the trainer finds them: the server runs
        another model. Later that is `BackendUnavailable`, because it can be given them again; so is a refusal.
        """
        label = self._labels.of(version)
        self._check_files(files)
        try:
            await self._give(dialect, version, files)
        except WorkerAbsent:
            raise
        except BackendError as error:
            raise BackendUnavailable(
                f"{error}; it was to take {files.kind.value} weights from {files.directory}, a folder that it has to"
                f" see and may read: {FOLDER_FLAG} names another one"
            ) from error
        try:
            await self._check_probe(dialect, version, files)
        except (BackendError, WeightMismatch):
            await self._drop(dialect, label)  # so that it is loaded anew
            raise
        self.version, self._has_served = version, True

    async def standing(self, dialect: Dialect, version: PolicyVersion) -> Standing:
        """Of this version, as the server says."""
        try:
            return await dialect.standing(self._client, self._labels.of(version), self._needs.weights)
        except NoAnswer as error:
            raise BackendUnavailable(f"{self._url} did not say which weights it serves: {error}") from None

    async def scores(
        self, dialect: Dialect, token_ids: IntArray, places: IntArray, version: PolicyVersion
    ) -> FloatArray:
        """Log-probs of the tokens of a text at these places, 1 or above, [P]."""
        try:
            return await dialect.scores(self._client, token_ids, places, self.adapter(version))
        except NoAnswer as error:
            raise BackendUnavailable(f"{self._url} did not score a text: {error}") from None

    async def drop(self, dialect: Dialect, used: Collection[PolicyVersion]) -> None:
        """Forget adapters of ours on the server, all but these."""
        kept = {self._labels.of(version) for version in used}
        for label in [one for one in self._loaded if one not in kept]:
            await self._drop(dialect, label)

    async def _drop(self, dialect: Dialect, label: str) -> None:
        if label in self._loaded:
            self._loaded.remove(label)
            await dialect.drop_adapter(self._client, label)

    async def _give(self, dialect: Dialect, version: PolicyVersion, files: WeightFiles) -> None:
        label = self._labels.of(version)
        if files.kind is WeightKind.FULL:

            def begin() -> None:
                self.live = version

            await dialect.take_weights(self._client, label, files.directory, begin)
            return
        if label in self._loaded and await self.standing(dialect, version) is Standing.SERVED:
            return  # it was loaded before, and the word of it got lost
        self._loaded = [one for one in self._loaded if one != label] + [label]
        await dialect.take_adapter(self._client, label, files.directory)

    def _check_files(self, files: WeightFiles) -> None:
        """A server would take a set that lacks some, and go on with a mixture."""
        if files.kind is WeightKind.ADAPTER or self._needs.model is None:
            return
        model = Path(self._needs.model)
        try:
            if self._base is None:
                self._base = shapes(model)
            fault = weights_fault(self._base, shapes(Path(files.directory)), ties_output=_ties_output(model))
        except (OSError, ValueError) as error:
            raise BackendError(f"weights in {files.directory} are refused: {error}") from error
        if fault is not None:
            raise BackendError(
                f"weights in {files.directory} are refused: {fault}, unlike the model in {model}"
            )

    async def _check_probe(self, dialect: Dialect, version: PolicyVersion, files: WeightFiles) -> None:
        if (probe := files.probe) is None:
            return
        last = len(probe.token_ids) - 1
        places = np.unique(np.linspace(1, last, min(PROBE_PLACES, last)).round().astype(np.int32))
        try:
            served = await self.scores(dialect, probe.token_ids, places, version)
        except BackendRejected as error:
            raise BackendUnavailable(f"the probe of weights {version} was refused: {error}") from error
        self.probe_difference = probe.difference(served, places)
        if self.probe_difference > probe.tolerance:
            words = (
                f"{self._url} does not serve the weights {version} that it took: its log-probs of the probe differ by"
                f" {self.probe_difference:.3g} nats, {probe.tolerance:g} are allowed"
            )
            if self._has_served:
                raise BackendUnavailable(words)
            raise WeightMismatch(f"{words}; does it run the model that is trained?")


def _ties_output(model: Path) -> bool:
    """Whether the output layer may be the embedding, so that files need not hold it."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("text_config", config).get("tie_word_embeddings", True))
