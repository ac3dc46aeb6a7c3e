"""What a row gets whose reward raised or was not finite."""

import math
from dataclasses import dataclass

from swift_rlx.errors import ConfigError


@dataclass(frozen=True)
class OnError:
    """The policy of `--reward_on_error`: stop with an error, or give the row `value` (None = unscored).

    `flag`: as the user types it.
    """

    raises: bool = True
    value: float | None = None
    flag: str = "--reward_on_error"

    @classmethod
    def parse(cls, text: str, flag: str = flag) -> "OnError":
        """'raise', 'none' or 'value:X' with a finite X. Raises ConfigError for anything else."""
        word, _, number = text.strip().partition(":")
        if word.lower() == "raise" and not number:
            return cls(flag=flag)
        if word == "none" and not number:  # not "None": that is a YAML null, a key without a value
            return cls(raises=False, flag=flag)
        if word.lower() == "value":
            try:
                value = float(number)
            except ValueError:
                value = math.nan
            if math.isfinite(value):
                return cls(raises=False, value=value, flag=flag)
        raise ConfigError(
            f"{flag} got {text!r}: it is 'raise', 'none' (the row is unscored) or 'value:X' with a finite number X,"
            " such as value:-1"
        )

    def __str__(self) -> str:
        if self.raises:
            return "raise"
        return "none" if self.value is None else f"value:{self.value:g}"


RAISE = OnError()
