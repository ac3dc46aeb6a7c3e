"""The one table of the metrics of the rollout pipeline: name -> meaning.

A metric that has nothing to say (no batch, no answer, no training step since the last line of the log) is absent from
the line. Shares are from 0 to 1.
"""

from __future__ import annotations

from swift_rlx.types import DropReason, Fate

LONG = 0.05
"""The share of answers that count as long."""

METRICS: dict[str, str] = {
    "rollout/trainer_busy": "share of the time since the last line in which the trainer ran forward, backward or the"
    " optimizer; without the first two steps of a run",
    "rollout/wait_s": "seconds per generation batch that the trainer waited for it",
    "rollout/publish_s": "seconds per publish that the trainer was held up by gathering and handing over its weights",
    "rollout/apply_s": "seconds that a worker took to load published weights, mean over workers and publishes",
    "rollout/staleness_mean": "optimizer steps in the trainer's weights minus those in the weights that made a token,"
    " when its generation batch was picked up; mean over the trained tokens",
    "rollout/staleness_max": "the largest staleness of a trained token; never above --max_staleness",
    "rollout/tokens_per_s": "tokens per second of the answers that ended since the last line, all workers together",
    "rollout/inflight": "requests that workers work on, when the line was written",
    "rollout/ready": "scored groups that wait for the trainer, when the line was written",
    "rollout/latency_p50_s": "seconds from submitting a request to the end of its answer, of all turns where it is a"
    " conversation; median",
    "rollout/latency_p95_s": "the same, 95th percentile",
    "rollout/first_token_p50_s": "seconds from submitting a request to the first token, median",
    "rollout/first_token_p95_s": "the same, 95th percentile",
    "rollout/score_s": "seconds from the last answer of a group to its scores, mean over the trained groups",
    "rollout/long_answers_share": "share of the trained answers that are among the slowest 5 % of the last 10,000"
    " answers that ended, trained or not; 0.05 is fair, less means that long answers are left out",
    "rollout/long_answers_in_mask": "share of the tokens of those long answers that trained",
    "rollout/retries": "requests that were sent again after a failure",
    "rollout/failovers": "times that a worker was taken out because of failures",
    "rollout/groups_dropped": "prompts that ended without training: no answer after all attempts, too few scores, or"
    " turned away by --dynamic_sample",
    "rollout/tokens_wasted": "generated tokens of which became clear since the last line that they never train: over"
    " age, cut, failed",
    "rollout/tokens_repeated": "generated tokens that were made a second time since the last line, because an attempt"
    " failed and the next could not go on behind them; they are among the wasted ones",
    **{
        f"groups/dropped_{reason.name.lower()}": "groups that ended without training since the last line,"
        f" for '{reason.value}'"
        for reason in DropReason
    },
    **{
        f"tokens/{fate.name.lower()}_share": "share of all generated tokens that arrived so far, or that a failure"
        f" reported, with the fate '{fate.value}'; these shares sum to 1"
        for fate in Fate
    },
}
