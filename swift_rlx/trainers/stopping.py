"""What is said when a training is stopped from outside: how to go on, and what had limited it."""

from typing import Any

from swift.utils import get_logger

from swift_rlx.cluster.stop_notice import StopNotice
from swift_rlx.integration.checkpoint_files import last_complete

logger = get_logger()


class StoppingMixin:
    """Says it at Ctrl-C and SIGTERM, on rank 0. To stand first."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if not self.accelerator.is_main_process:
            return super().train(*args, **kwargs)
        with StopNotice(self.say_how_to_go_on):
            return super().train(*args, **kwargs)

    def say_how_to_go_on(self, stopped_by: str) -> None:
        """Log one line about the checkpoint to resume from, and the summary; the first may be all there is time for."""
        folder, path = self.args.output_dir, last_complete(self.args.output_dir)
        if path is not None:
            further = (
                f"to go on, give the same command with --resume_from_checkpoint {path}, the last complete one"
            )
        else:
            further = f"there is no complete checkpoint in {folder}, so that the run can only begin anew"
            if str(getattr(self.args.save_strategy, "value", self.args.save_strategy)) == "steps":
                further += f" (--save_steps {self.args.save_steps:g} says how often one is saved)"
        logger.info(f"swift-rlx: stopped by {stopped_by} after step {self.state.global_step}; {further}")
        self.tell_summary()
