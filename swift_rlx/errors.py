"""Every exception that swift_rlx raises on purpose.

    RlxError
    ├── ConfigError      (ValueError)    an argument or a combination of arguments is refused
    ├── ContractError    (RuntimeError)  the installed ms-swift lacks something that we build on
    ├── PluginError      (RuntimeError)  a name that no package offers, that two offer, or that fails to import
    ├── RewardError      (ValueError)    a reward failed or returned something that is not a reward
    └── CheckpointError  (RuntimeError)  saved state is missing, torn, or belongs to another run

A message is one sentence: what was refused, the value, what is allowed, what to do. All of them survive pickling
(they carry only their message), so that a spawned process can hand one to its parent.
"""


class RlxError(Exception):
    """Base of all errors of this package."""


class ConfigError(RlxError, ValueError):
    """An argument or a combination of arguments is refused."""


class ContractError(RlxError, RuntimeError):
    """The installed ms-swift lacks something that this package builds on."""


class PluginError(RlxError, RuntimeError):
    """A plugin name is unknown, offered twice, or its package fails to import."""


class RewardError(RlxError, ValueError):
    """A reward raised, or returned something that is not one number or None per completion."""


class CheckpointError(RlxError, RuntimeError):
    """Saved training state is missing, torn, or belongs to another kind of run."""
