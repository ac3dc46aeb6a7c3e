"""What a run on rollout servers is made of: asked of the servers by rank 0, decided the same on every rank."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from swift.utils import get_logger

from swift_rlx.backends import WeightKind
from swift_rlx.backends.remote_dialect import Ability, ServerFacts, ServerKind, ServerNeeds
from swift_rlx.backends.remote_endpoint import ApiKey, Endpoint, parse_endpoints, read_api_key
from swift_rlx.backends.remote_gate import InflightLimits
from swift_rlx.backends.remote_start import survey
from swift_rlx.errors import ConfigError
from swift_rlx.integration.engine_options import refuse_options_of_servers
from swift_rlx.scheduler import RolloutConfig
from swift_rlx.trainers.crew import ServerCrew
from swift_rlx.trainers.weight_probe import probe_tokens

logger = get_logger()
ASKED_TOKENS = 16
"""Length of the text by which servers are asked what their log-probs mean."""


def server_crew(trainer: Any, config: RolloutConfig) -> ServerCrew:
    """The servers, and the way in which weights reach them; on all ranks.

    Raises ConfigError, on all ranks, where none answers, or one lacks what the run needs.
    """
    args = trainer.args
    refuse_options_of_servers(args.rlx_engine_options)
    if trainer.is_multimodal:
        raise ConfigError(
            "--rollout_endpoints is refused for a multimodal model: servers are given prompts of text only; use"
            " --rollout_backend transformers, or --async_rollout false"
        )
    endpoints = parse_endpoints(args.rollout_endpoints)
    model = trainer.accelerator.unwrap_model(trainer.model)
    vocabulary = model.get_input_embeddings().num_embeddings
    probe_ids = tuple(probe_tokens(vocabulary, trainer.template.tokenizer)[:ASKED_TOKENS].tolist())
    key, found = _ask(trainer, endpoints, probe_ids)
    facts = tuple(found.values())
    adapter = model.peft_config["default"] if hasattr(model, "peft_config") else None
    rank = max(16, getattr(adapter, "r", 0) or 0) if adapter is not None else 0
    trainer.prepare_export(_name(facts), rank, _why_no_adapter(facts))
    kind = trainer.exporter.kind
    needs = ServerNeeds(
        weights=kind,
        vocabulary=vocabulary,
        sampling=config.sampling,
        keeps=kind is WeightKind.FULL and all(one.keeps() for one in facts),
        model=trainer.template.model_info.model_dir,
        probe_ids=probe_ids,
        max_adapter_rank=getattr(adapter, "r", 0) if kind is WeightKind.ADAPTER else 0,
    )
    for endpoint in endpoints:
        if endpoint.url in found:
            _check(endpoint, found[endpoint.url], needs, trainer)
    limits = InflightLimits(args.rollout_max_inflight, args.rollout_max_inflight_tokens)
    decode = partial(trainer.template.tokenizer.decode, skip_special_tokens=True)
    return ServerCrew(endpoints, needs, key, limits, decode)


def shared_directory(trainer: Any, otherwise: Path) -> Path | None:
    """Where weights are put for the servers to read; None: shared memory, as for workers of this machine."""
    args = trainer.args
    if args.rollout_shared_directory is not None:
        path = Path(args.rollout_shared_directory)
        path.mkdir(parents=True, exist_ok=True)
        return path
    is_near = all(endpoint.is_local for endpoint in parse_endpoints(args.rollout_endpoints))
    return None if is_near else otherwise


def _ask(
    trainer: Any, endpoints: Sequence[Endpoint], probe_ids: tuple[int, ...]
) -> tuple[ApiKey | None, dict[str, ServerFacts]]:
    """What the servers are that answer, by URL; the key on rank 0 alone, which talks to them."""
    keys: list[ApiKey | None] = [None]

    def ask() -> bytes:
        keys[0] = read_api_key(os.environ)
        with ThreadPoolExecutor(1) as thread:  # a notebook has a loop of its own in this one
            found = thread.submit(lambda: asyncio.run(survey(endpoints, keys[0], probe_ids))).result()
        for url, facts in found.items():
            logger.info(f"{url}: {facts.kind.value} {facts.version}, model {facts.model}")
        return msgspec.json.encode(found)

    message = trainer._link.share(ask)
    return keys[0], msgspec.json.decode(message, type=dict[str, ServerFacts])


def _name(facts: Sequence[ServerFacts]) -> str:
    """The engine whose rules for adapters count: vLLM's, where both are there."""
    return "vllm" if any(one.kind is ServerKind.VLLM for one in facts) else "sglang"


def _why_no_adapter(facts: Sequence[ServerFacts]) -> str | None:
    """Why an adapter alone is not published, in words, where full weights are the way that all servers have."""
    lacking = [one.lacks[Ability.ADAPTERS] for one in facts if Ability.ADAPTERS in one.lacks]
    if lacking and all(Ability.WEIGHTS not in one.lacks for one in facts):
        return f"a server takes none while it runs ({lacking[0]})"
    return None


def _check(endpoint: Endpoint, facts: ServerFacts, needs: ServerNeeds, trainer: Any) -> None:
    if (fault := facts.fault(endpoint, needs)) is not None:
        raise ConfigError(fault)
    room, own = facts.max_model_len, trainer.template.model_info.max_model_len
    prompts = trainer.template.max_length or own
    if room is not None and prompts and room < min(prompts + trainer.max_completion_length, own or room + 1):
        logger.warning(
            f"{endpoint.url} takes {room} tokens in all, and prompts of up to {prompts} with completions of"
            f" --max_completion_length {trainer.max_completion_length} are trained: longer ones are cut there; start it"
            " with a larger --max-model-len"
        )
    if facts.is_open and not endpoint.is_local:
        logger.warning(
            f"{endpoint.url} lets everybody who reaches it change its weights, because vLLM's development mode takes no"
            " key: keep it in a private network"
        )
