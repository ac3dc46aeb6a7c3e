"""Lossless resume with answers in flight: what a checkpoint has of the pipeline, and the journal behind it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.utils import get_logger

from swift_rlx.scheduler.journal_segments import Segment
from swift_rlx.scheduler.resume import RolloutState
from swift_rlx.scheduler.state_file import load_state, save_state
from swift_rlx.trainers.journal_place import go_on_from, needed_segments
from swift_rlx.trainers.rank_link import RankLink
from swift_rlx.types import PolicyVersion

if TYPE_CHECKING:
    from swift_rlx.trainers.pipeline import RolloutPipeline

logger = get_logger()
ROLLOUT_FOLDER = "rollout"
"""Beside state.json in a checkpoint: answers that wait for their training, and prompts that are generated again."""


class RolloutResumeMixin:
    """Saves and restores what the pipeline has, around `ResumeMixin`'s own."""

    pipeline: "RolloutPipeline | None" = None
    """On rank 0, while it runs."""
    rollout_state: RolloutState | None = None
    """What an earlier start of the run left, until the pipeline has it."""
    journal_segment: Segment | None = None
    """Where a resumed run's journal goes on."""
    _link: RankLink | None = None

    def _save_state(self, folder: str) -> None:
        if self.args.async_rollout and self.accelerator.is_main_process:
            state = self.rollout_state if self.pipeline is None else self.pipeline.thread.snapshot()
            if state is not None:
                save_state(state, Path(folder, ROLLOUT_FOLDER))
        super()._save_state(folder)

    def _load_state(self, folder: str) -> None:
        super()._load_state(folder)
        if self.args.async_rollout:
            self.rollout_state = load_state(Path(folder, ROLLOUT_FOLDER))
            if self.accelerator.is_main_process:
                self.rollout_state, self.journal_segment = go_on_from(
                    self.rollout_state, Path(folder).parent, self.args.output_dir
                )

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._save_checkpoint(*args, **kwargs)
        if self.pipeline is not None:
            self.pipeline.journal.release(needed_segments(self.args.output_dir))
        return result

    def _order(self) -> dict[str, Any]:
        return super()._order() | {"async_rollout": self.args.async_rollout}

    def refresh_rollouts(self) -> None:
        super().refresh_rollouts()
        if self.pipeline is not None:
            logger.warning(
                f"{self.pipeline.refresh()} prompts with answers of older weights are answered again"
            )

    def version_of_start(self) -> PolicyVersion:
        """Of the weights of now, on all ranks; how often the run was started before, rank 0 knows."""
        starts = 0 if self.rollout_state is None else self.rollout_state.incarnation + 1
        return PolicyVersion(int(self._link.share(str(starts).encode)), self.state.global_step)
