"""Which version of each reward the training steps of a run were made with."""

from __future__ import annotations

from collections.abc import Mapping


class RewardChanges:
    """Versions by reward, each with the first optimizer step that trained on its scores."""

    def __init__(self) -> None:
        self._versions: dict[str, list[tuple[int, str]]] = {}

    def trained(self, step: int, versions: Mapping[str, str]) -> None:
        """Optimizer step `step` trains on scores of these versions."""
        for name, version in versions.items():
            seen = self._versions.setdefault(name, [])
            if not seen or seen[-1][1] != version:
                seen.append((step, version))

    def line(self) -> str | None:
        """Of the rewards that were replaced; None where none was."""
        told = [
            f"{name} {', '.join(f'{version} from step {step}' for step, version in seen)}"
            for name, seen in self._versions.items()
            if len(seen) > 1
        ]
        return f"rewards that were replaced: {'; '.join(told)}" if told else None
