"""Every exception that swift_rlx raises on purpose.

    RlxError
    ├── ConfigError      (ValueError)    an argument or a combination of arguments is refused
    ├── ContractError    (RuntimeError)  the installed ms-swift lacks something that we build on
    ├── PluginError      (RuntimeError)  a name that no package offers, that two offer, or that fails to import
    ├── RewardError      (ValueError)    a reward failed or returned something that is not a reward
    │   └── RewardUnavailable            its service cannot be used now; worth another try later
    ├── CheckpointError  (RuntimeError)  saved state is missing, torn, or belongs to another run
    ├── StoreError       (RuntimeError)  trajectories cannot be written to disk, or read from it
    ├── BackendError     (RuntimeError)  a rollout backend did not do what it was asked
    │   ├── BackendTimeout      (TimeoutError)     no answer in time; worth a retry elsewhere
    │   ├── BackendUnavailable  (ConnectionError)  the worker cannot serve now; worth a retry elsewhere
    │   │   ├── WorkerDied                         its process ended with the request on it
    │   │   │   └── EngineStalled                  its engine said nothing for too long, and was ended
    │   │   ├── WorkerAbsent                       it is gone or being started; nothing was asked of it
    │   │   │   └── WorkerLost                     it died again and again, and is not started any more
    │   │   ├── WeightsLost                        a server does not serve what it was given any more
    │   │   └── BackendUnfit                       a server that is up lacks what the run needs
    │   └── BackendRejected     (ValueError)       it refused this request; a retry would be refused too
    ├── WeightMismatch   (RuntimeError)  a worker does not serve the weights that it was given
    ├── StalenessError   (RuntimeError)  a token is not of the policy version that it should be
    └── SchedulingError  (RuntimeError)  the scheduler broke one of its own laws: a bug

A message is one sentence: what was refused, the value, what is allowed, what to do. All of them survive pickling
(they carry only their message and plain attributes), so that a spawned process can hand one to its parent.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` alone would cost milliseconds
if TYPE_CHECKING:
    from typing import TypeVar

    AnyBackendError = TypeVar("AnyBackendError", bound="BackendError")


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


class RewardUnavailable(RewardError):
    """A reward's service cannot be used now; another try may have an answer."""

    transient = True


class CheckpointError(RlxError, RuntimeError):
    """Saved training state is missing, torn, or belongs to another kind of run."""


class StoreError(RlxError, RuntimeError):
    """Trajectories cannot be written to disk, or a file of them cannot be read."""


class BackendError(RlxError, RuntimeError):
    """A rollout backend did not do what it was asked.

    `lost_tokens`: generated in this attempt at the request, those that were told included.
    """

    lost_tokens: int = 0

    def losing(self: AnyBackendError, tokens: int) -> AnyBackendError:
        """The same error, saying how many tokens the attempt had generated."""
        self.lost_tokens = tokens
        return self


class BackendTimeout(BackendError, TimeoutError):
    """No answer in time; another worker may have one."""


class BackendUnavailable(BackendError, ConnectionError):
    """The worker cannot serve now; another one may."""


class WorkerDied(BackendUnavailable):
    """The worker's process ended while it had the request."""


class EngineStalled(WorkerDied):
    """The worker's engine was without a word for longer than it may be, and its process ended itself."""


class WorkerAbsent(BackendUnavailable):
    """The worker's process has ended, or a new one is not ready; the request was not sent."""


class WorkerLost(WorkerAbsent):
    """The worker died again and again without an answer between, and is not started any more."""


class WeightsLost(BackendUnavailable):
    """A server serves other weights than it was given: it was started again, or somebody else publishes to it."""


class BackendUnfit(BackendUnavailable):
    """A server answers, but cannot do what the run needs as it was started."""


class BackendRejected(BackendError, ValueError):
    """The backend refused this request, or answered it with a record that cannot be used; no retry helps."""


class WeightMismatch(RlxError, RuntimeError):
    """A worker does not serve the weights that it says it has taken; what it generates must not train."""


class StalenessError(RlxError, RuntimeError):
    """A token carries another policy version than the one its worker has to serve, or is trained over age."""


class SchedulingError(RlxError, RuntimeError):
    """The scheduler broke one of its own laws, such as that every prompt ends exactly once: a bug."""
