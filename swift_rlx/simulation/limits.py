"""What could train at most at a given pace, whatever the order: a bound to compare a scheduler with."""

from __future__ import annotations

import numpy as np

from swift_rlx.simulation.setting import Setting


def ceiling(setting: Setting, step_s: float) -> tuple[float, float]:
    """Share of the tokens that train, of all prompts and of the slowest, if every answer ended at a pick-up.

    Weights are live at once and a step takes `step_s` seconds. A token is within the bound at the first pick-up of a
    step if it was made in the last `max_staleness` steps, and at later ones of the same step also if it was made
    since that step began.
    """
    latencies = np.array(
        [setting.group_latency_s(index) for index in range(setting.steps * setting.batch_groups)]
    )
    phases = np.arange(setting.batches_per_step) / setting.batches_per_step
    window_s = (setting.max_staleness + phases) * step_s
    young = np.minimum(latencies[:, None], window_s).mean(axis=1)
    tail = latencies >= setting.tail_latency_s()
    return float(young.sum() / latencies.sum()), float(young[tail].sum() / latencies[tail].sum())
