"""Which weights a vLLM engine serves, and how new ones get in.

    adapter, keep    the one adapter is replaced in its place while vLLM pauses; answers in flight go on under it
    adapter, pin     a further adapter for the requests from now on; answers in flight keep theirs; no pause
    full             all weights are replaced within one call while vLLM pauses

A pause with `clear_cache` drops keys and values of the old weights, prefix cache included, and computes those of the
answers in flight anew. While vLLM pauses no token is made, so the version label of each token is exact.

vLLM's CPU build computes a request without adapter wrongly in a batch with one that has an adapter (by nats, measured),
so the two never meet: the first adapter comes before the first request, or when the answers from before it have ended.

vLLM dies of an adapter that it has to read again from files that are gone. It does not have to: under `keep` the
adapter stays loaded, under `pin` so many versions that the oldest is out of use long before it is dropped. The files
can be removed as soon as `publish` has returned.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from swift_rlx.backends.engine import EngineSpec
from swift_rlx.backends.vllm_answer import Answer
from swift_rlx.backends.vllm_arguments import EngineArguments, WeightTransfer
from swift_rlx.backends.vllm_device_transfer import Order, read_order
from swift_rlx.backends.vllm_weight_files import shapes, weights_fault
from swift_rlx.backends.weights import WeightFiles, WeightKind
from swift_rlx.errors import BackendError, WorkerDied
from swift_rlx.types import PolicyVersion

KEPT_ADAPTER = 1
"""vLLM's number of the adapter that is replaced in its place."""


class VllmWeights:
    """The weights of one engine. `version` and `adapter` are those for new requests; one call at a time."""

    def __init__(self, llm: Any, spec: EngineSpec, arguments: EngineArguments) -> None:
        self._llm = llm
        self._name = spec.name
        self._base = Path(spec.model)
        self._not_loaded = spec.not_loaded
        self._transfer = arguments.weight_transfer
        self._pins = arguments.pins(spec)
        self._has_adapters = spec.max_adapter_rank > 0
        self._number = KEPT_ADAPTER
        self.version = spec.version
        self.adapter: Any = None

    @property
    def pinned(self) -> PolicyVersion | None:
        """The version that makes every token of a request that starts now; None: later ones may take over."""
        return self.version if self._pins else None

    async def begin(self) -> None:
        """Before the first request: vLLM labels tokens with our version."""
        await self._llm.update_weight_version(str(self.version))

    async def publish(self, version: PolicyVersion, files: WeightFiles, answers: Collection[Answer]) -> None:
        """Serve these weights to every request from now on; `answers` are those in flight.

        Raises `BackendError` where they cannot be, the old ones still served, and `WorkerDied` where loading them
        failed half-way.
        """
        directory = Path(files.directory)
        if files.kind is WeightKind.FULL:
            if not await self._replace_all(version, directory, answers):
                return
        elif not self._has_adapters:
            raise BackendError(
                f"engine '{self._name}' was started without room for adapters: publish full weights"
            )
        elif bare := sum(answer.adapter is None for answer in answers):
            raise BackendError(
                f"engine '{self._name}' has {bare} answers in flight from before its first adapter: publish that"
                " before the first request, or wait for them"
            )
        elif self._pins:
            self._number += 1
            adapter = self._request(directory)
            await self._llm.add_lora(adapter)
            self.adapter = adapter
        else:
            await self._replace_adapter(version, directory)
        self.version = version

    async def _replace_adapter(self, version: PolicyVersion, directory: Path) -> None:
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._llm.add_lora(self._request(directory, in_place=True))
            await self._llm.update_weight_version(str(version))
            self.adapter = self._request(directory)
        finally:
            await self._llm.resume_generation()

    async def _replace_all(
        self, version: PolicyVersion, directory: Path, answers: Collection[Answer]
    ) -> bool:
        """Whether weights were moved, and not only the transfer of later ones was agreed on."""
        from vllm.distributed.weight_transfer.base import (
            WeightTransferInitRequest,
            WeightTransferUpdateRequest,
        )

        # vLLM drops all adapters with the weights that they were made for
        if adapted := sum(answer.adapter is not None for answer in answers):
            raise BackendError(
                f"engine '{self._name}' has {adapted} answers in flight that need adapters on the old weights:"
                " wait for them, or publish adapters"
            )
        order = self._order(directory)
        if order.init is not None:
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(order.init)))
        if order.update is None:
            return False
        update = WeightTransferUpdateRequest(update_info=dict(order.update))
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._llm.start_weight_update()
            await self._llm.update_weights(update)
            await self._llm.finish_weight_update(str(version))
        except Exception as error:
            raise WorkerDied(
                f"engine '{self._name}' lost its weights while it took {directory}: {error}"
            ) from error
        self.adapter = None
        await self._llm.resume_generation()
        return True

    def _order(self, directory: Path) -> Order:
        """What to tell the transfer. Raises `BackendError` for files that are not all weights of the model."""
        if self._transfer is not WeightTransfer.FILE:
            if (order := read_order(directory)) is None:
                raise BackendError(
                    f"engine '{self._name}' takes weights by '{self._transfer.value}' and was given files: use"
                    " weight_transfer 'file'"
                )
            return order
        try:
            fault = weights_fault(
                shapes(self._base),
                shapes(directory),
                ties_output=self._ties_output(),
                not_loaded=self._not_loaded,
            )
        except (OSError, ValueError) as error:
            raise BackendError(f"weights in {directory} are refused: {error}") from error
        if fault is not None:
            raise BackendError(
                f"weights in {directory} are refused: {fault}, unlike the model in {self._base}"
            )
        return Order(update={"directory": str(directory)})

    def _ties_output(self) -> bool:
        config = self._llm.model_config
        return any(
            getattr(one, "tie_word_embeddings", False) for one in (config.hf_config, config.hf_text_config)
        )

    def _request(self, directory: Path, *, in_place: bool = False) -> Any:
        """vLLM knows an adapter by its number and caches prefixes by its name and path."""
        from vllm.lora.request import LoRARequest

        return LoRARequest(
            lora_name=f"adapter-{self._number}",
            lora_int_id=self._number,
            lora_path=str(directory),
            load_inplace=in_place,
        )
