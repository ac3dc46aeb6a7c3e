"""What a reward service tells Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class ServiceMetrics:
    """In a registry of their own: a process may hold several services, as tests do."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        prefix = "rlx_reward_"
        self.requests = Counter(
            f"{prefix}requests", "Requests for scores", ["tenant", "status"], registry=registry
        )
        self.rows = Counter(f"{prefix}rows", "Rows scored", ["reward", "outcome"], registry=registry)
        self.batch_rows = Histogram(
            f"{prefix}batch_rows", "Rows scored together", buckets=_ROWS, registry=registry
        )
        self.batch_s = Histogram(
            f"{prefix}batch_seconds", "Time to score a batch", buckets=_SECONDS, registry=registry
        )
        self.queued_rows = Gauge(f"{prefix}queued_rows", "Rows that wait", registry=registry)
        self.workers = Gauge(f"{prefix}workers", "Worker processes", ["state"], registry=registry)
        self.worker_ends = Counter(
            f"{prefix}worker_ends", "Worker processes that ended or hung", registry=registry
        )

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
