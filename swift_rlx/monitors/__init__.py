"""Seeing a run: timeline, metrics, a progress line, and what limited it."""

from swift_rlx.monitors.columns import COLUMNS, version_columns
from swift_rlx.monitors.monitor import Monitor
from swift_rlx.monitors.names import METRICS
from swift_rlx.monitors.progress import progress_line
from swift_rlx.monitors.records import Counters, Phase, RolloutPlan, RunTotals
from swift_rlx.monitors.timeline import Timeline
from swift_rlx.monitors.timeline_parts import read_timeline
from swift_rlx.monitors.watched_backend import WatchedBackend

__all__ = [
    "COLUMNS",
    "METRICS",
    "Counters",
    "Monitor",
    "Phase",
    "RolloutPlan",
    "RunTotals",
    "Timeline",
    "WatchedBackend",
    "progress_line",
    "read_timeline",
    "version_columns",
]
