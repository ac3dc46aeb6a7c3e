"""What a user may set of an objective, as plain values: `--offline_settings '{"temperature": 0.5}'`.

`beta` is not among them: it is a flag of its own, as for every algorithm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from swift_rlx.errors import ConfigError

from ..leave_one_out import loo_advantages
from .awac import AdaptiveTemperature, reward_alone
from .cql import ExponentialAlpha, LinearAlpha, Schedule
from .objective import OfflineObjective
from .objective_table import make_objective

Reader = Callable[[Any], object]
"""From a value of JSON to the value of the objective's field. Raises ValueError that says what is allowed."""

EVERYTHING = (0.0, 1.0)
DEFAULT_BETA = {"softmax_ce": 0.03, "softmax_ce_forward_kl": 0.03, "awac": 0.0, "cql": 0.0}
"""Of the objectives that are no policy gradient."""


def parse_settings(text: str | None) -> dict[str, Any]:
    """The object that the text is; nothing for None. Raises ConfigError for other text."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise ConfigError(
            f"--offline_settings {text} is refused: it is a JSON object of settings by name, such as"
            " '{\"temperature\": 0.5}'"
        )
    return found


def objective_with(name: str, settings: Mapping[str, Any], beta: float) -> OfflineObjective:
    """The objective with these settings, and with `beta` where it has a KL of its own.

    Raises:
        ConfigError: an unknown objective or setting, or a value that is not allowed.
    """
    readers = SETTINGS.get(name, {})
    fields: dict[str, Any] = {}
    for setting, value in settings.items():
        if setting not in readers:
            known = f"it has {', '.join(readers)}" if readers else "it has none besides the flags"
            raise ConfigError(f"the setting '{setting}' of --offline_objective {name} is refused: {known}")
        try:
            fields[FIELDS.get(setting, setting)] = readers[setting](value)
        except ValueError as error:
            raise ConfigError(
                f"--offline_settings '{{\"{setting}\": {json.dumps(value)}}}' is refused for --offline_objective"
                f" {name}: {error}"
            ) from error
    if name in WITH_BETA:
        fields["beta"] = beta
    elif beta:
        raise ConfigError(
            f"--beta {beta:g} is refused for --offline_objective {name}, which has no KL; use 0"
        )
    return make_objective(name, force=False, **fields)


def needs_groups(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether the objective compares the completions of a prompt, so that one alone teaches nothing."""
    return name != "cql" and not (name == "awac" and settings.get("advantages") == "reward")


def _number(low: float, high: float, what: str, *, open_low: bool = False) -> Reader:
    def read(value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not low <= value <= high or (open_low and value == low):
            raise ValueError(what)
        return float(value)

    return read


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it is true or false")
    return value


def _fixed_temperature(value: Any) -> AdaptiveTemperature:
    """One that no mean weight moves."""
    return AdaptiveTemperature(float(_ABOVE_0(value)), band=EVERYTHING)  # type: ignore[arg-type]


def _advantages(value: Any) -> object:
    found = {"group": loo_advantages, "reward": reward_alone}.get(value if isinstance(value, str) else "")
    if found is None:
        raise ValueError('it is "group" (leave-one-out within a prompt) or "reward"')
    return found


def _alpha(value: Any) -> Schedule:
    given = value if isinstance(value, dict) else {}
    kinds: dict[str, type[LinearAlpha] | type[ExponentialAlpha]] = {
        "linear": LinearAlpha,
        "exponential": ExponentialAlpha,
    }
    kind = kinds.get(given.get("schedule", "linear"))
    ends = {one: number for one, number in given.items() if one != "schedule"}
    is_fit = all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
        for number in ends.values()
    )
    if kind is None or not given or not is_fit or not set(ends) <= {"start", "end", "until"}:
        raise ValueError(
            'it is an object of "start", "end", "until" (a share of the training), numbers above 0, and "schedule",'
            ' "linear" or "exponential"'
        )
    return kind(**ends)


_ABOVE_0 = _number(0, math.inf, "it is a number above 0", open_low=True)
_SHARE = _number(0, 1, "it is a number from 0 to 1")
SETTINGS: dict[str, dict[str, Reader]] = {
    "softmax_ce": {"tau": _ABOVE_0, "length_norm": _switch, "skip_uninformative": _switch},
    "softmax_ce_forward_kl": {"tau": _ABOVE_0, "skip_uninformative": _switch},
    "awac": {
        "temperature": _fixed_temperature,
        "advantages": _advantages,
        "floor": _SHARE,
        "low_share": _number(0, 0.99, "it is a number from 0 to 0.99"),
        "length_norm": _switch,
    },
    "cql": {"alpha": _alpha, "gamma": _SHARE, "q_scale": _ABOVE_0, "td_from": _SHARE},
}
FIELDS = {"low_share": "min_low_share"}
"""Settings whose field has another name."""
WITH_BETA = ("softmax_ce", "softmax_ce_forward_kl", "awac")
