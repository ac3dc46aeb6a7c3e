"""The picture of a run: reward over the steps, and held-out reward before and after."""

import json
from pathlib import Path

import matplotlib
from verdict import Verdict

matplotlib.use("Agg")  # no display needed


def read_curve(logging_jsonl: Path) -> tuple[list[int], list[float]]:
    """Steps and mean training rewards that ms-swift logged."""
    steps, rewards = [], []
    for line in logging_jsonl.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "reward" in row:
            steps.append(int(str(row["global_step/max_steps"]).split("/")[0]))
            rewards.append(float(row["reward"]))
    return steps, rewards


def draw(path: Path, title: str, curve: tuple[list[int], list[float]], verdict: Verdict) -> Path:
    """Write the PNG file `path`."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4), width_ratios=[2, 1], sharey=True)
    left.plot(*curve, marker="o")
    left.set(xlabel="train step", ylabel="mean reward", title=f"{title}: training prompts", ylim=(0, 1))
    left.grid(alpha=0.3)
    estimates = [verdict.before, verdict.after]
    right.bar(
        ["before", "after"],
        [estimate.mean for estimate in estimates],
        yerr=[estimate.standard_error for estimate in estimates],
        capsize=6,
        color=["#999999", "#2a7ab9"],
    )
    right.set(title=f"{verdict.num_prompts} held-out prompts, ± standard error")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
