"""Offline objectives by name, and the refusal of the one that is wrong on stored data."""

from __future__ import annotations

from collections.abc import Callable

from swift_rlx.errors import ConfigError

from .awac import AWAC
from .cql import CQL
from .objective import OfflineObjective
from .rloo_is import RLOOWithImportance
from .softmax_ce import SoftmaxCE, SoftmaxCEForwardKL

OBJECTIVES: dict[str, Callable[..., OfflineObjective]] = {
    "rloo_is": RLOOWithImportance,
    "softmax_ce": SoftmaxCE,
    "softmax_ce_forward_kl": SoftmaxCEForwardKL,
    "awac": AWAC,
    "cql": CQL,
}
UNWEIGHTED = "rloo"


def make_objective(name: str, *, force: bool = False, **settings: object) -> OfflineObjective:
    """The objective of that name with these settings (fields of its class).

    `rloo` is RLOO without weights, and is made only with `force`.

    Raises:
        ConfigError: unknown name or setting, a setting out of range, or `rloo` without `force`.
    """
    if name == UNWEIGHTED:
        return _unweighted(force)
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ConfigError(f"--offline_objective {name} is refused: it is not known; use one of {known}")
    try:
        return OBJECTIVES[name](**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--offline_objective {name} is refused with {settings}: {error}") from error


def resolve_auto(*, has_rewards: bool, has_behavior_logprobs: bool) -> str:
    """What `--offline_objective auto` is for a store: importance weights if it has log-probs, else imitation.

    Raises:
        ConfigError: the store has no rewards.
    """
    if not has_rewards:
        raise ConfigError(
            "--offline_objective auto is refused: the stored completions have no rewards; score them first with"
            " swift-rlx store score"
        )
    return "rloo_is" if has_behavior_logprobs else "awac"


def _unweighted(force: bool) -> OfflineObjective:
    if not force:
        raise ConfigError(
            "--offline_objective rloo is refused: stored completions were sampled by older policies, and without"
            " importance weights its gradient is biased and pushes completions down without limit; use rloo_is, or awac"
            " where the store has no log-probs, or force it"
        )
    return RLOOWithImportance(correction="none")
