"""The state of the pipeline in a few words, for the right end of a progress bar or a line of the log."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "rollout "


def progress_line(values: Mapping[str, float], width: int | None = None) -> str:
    """For example `rollout 23 in flight, 2 ready, staleness 1.2 (max 2), 1.9k tok/s, trainer 94 % busy`.

    `values`: metrics by their names (`names.METRICS`); what is absent is left out. Of what does not fit into `width`
    characters the least telling parts go. Empty where nothing is known.
    """
    parts = _parts(values)
    keep = sorted(range(len(parts)), key=lambda at: parts[at][0])
    while keep:
        line = PREFIX + ", ".join(parts[at][1] for at in sorted(keep))
        if width is None or len(line) <= width:
            return line
        keep.pop()
    return ""


def _parts(values: Mapping[str, float]) -> list[tuple[int, str]]:
    """(rank, text) in the order in which they are shown; the lowest rank is kept longest."""
    found: list[tuple[int, str]] = []

    def add(rank: int, text: str, *names: str) -> None:
        if all(name in values for name in names):
            found.append((rank, text.format(*(values[name] for name in names))))

    add(3, "{:.0f} in flight", "rollout/inflight")
    add(2, "{:.0f} ready", "rollout/ready")
    add(1, "staleness {:.1f} (max {:.0f})", "rollout/staleness_mean", "rollout/staleness_max")
    if "rollout/tokens_per_s" in values:
        found.append((4, f"{short_number(values['rollout/tokens_per_s'])} tok/s"))
    if "rollout/trainer_busy" in values:
        found.append((0, f"trainer {100 * values['rollout/trainer_busy']:.0f} % busy"))
    return found


def short_number(value: float) -> str:
    """`950`, `1.9k`, `23k`, `1.2M`."""
    for limit, divisor, unit in ((999.5, 1.0, ""), (999_500.0, 1e3, "k"), (float("inf"), 1e6, "M")):
        if value < limit:
            scaled = value / divisor
            return f"{scaled:.1f}{unit}" if unit and scaled < 9.95 else f"{scaled:.0f}{unit}"
    return "inf"
