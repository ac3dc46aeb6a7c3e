"""Lossless resume: what the Trainer does not save and a bit-equal continuation needs.

    checkpoint-N/rlx/state.json                 counters, the algorithm's own state, and the facts that fix the order
    checkpoint-N/rlx/buffer-rankR.safetensors   a generation batch of which only a part was trained

The order of prompts needs nothing saved: it is a function of (seed, epoch, index), see epoch_sampler.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from swift.utils import get_logger
from transformers import TrainerCallback

import swift_rlx
from swift_rlx.errors import CheckpointError
from swift_rlx.integration.checkpoint_files import last_complete, refuse_incomplete
from swift_rlx.trainers.batch import RLXBatch
from swift_rlx.trainers.epoch_sampler import EpochSampler
from swift_rlx.trainers.tensor_file import load_tree, save_tree

logger = get_logger()
FOLDER, STATE, FORMAT = "rlx", "state.json", 1
SAMPLED_ROWS = 16


class CountedIterator:
    """An endless iterator that knows how many items it gave, so that a resumed run can skip as many."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items, self.drawn = items, 0

    def __iter__(self) -> "CountedIterator":
        return self

    def __next__(self) -> Any:
        self.drawn += 1
        return next(self.items)

    def skip_to(self, drawn: int) -> None:
        while self.drawn < drawn:
            next(self)


class _EpochCallback(TrainerCallback):
    def __init__(self, trainer: "ResumeMixin") -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            logger.info(
                f"swift-rlx: nothing is left to train: the checkpoint is of step {state.global_step}, and the run ends"
                f" at step {state.max_steps}; to go on raise --max_steps or --num_train_epochs"
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.train_sampler.epoch = int(state.epoch or 0)


class ResumeMixin:
    """Saves and restores around the Trainer's own checkpoint."""

    RESAMPLE_ITERATORS = ("dynamic_resample_iterator", "truncated_resample_iterator")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_EpochCallback(self))

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        self.train_sampler = EpochSampler(
            data_source=train_dataset if train_dataset is not None else self.train_dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed,
        )
        return self.train_sampler

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """No batches after the last step: the Trainer looks at `max_steps` only when it has trained one more."""
        if self.state.global_step >= self.state.max_steps:
            return [], None
        batches: tuple[list[Any], Any] = super().get_batch_samples(*args, **kwargs)
        return batches

    def _prepare_resample_data_iterator(self) -> None:
        super()._prepare_resample_data_iterator()
        for name in self.RESAMPLE_ITERATORS:
            if hasattr(self, name):
                setattr(self, name, CountedIterator(getattr(self, name)))

    # --- what an algorithm carries from batch to batch; a subclass with state overrides both --------------------

    def algorithm_state(self) -> dict[str, Any]:
        """JSON-able state, the same on all ranks."""
        return {}

    def load_algorithm_state(self, state: dict[str, Any]) -> None:
        """Restore what `algorithm_state` returned."""

    # --- save ----------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        # First ours, then the Trainer's, whose trainer_state.json comes last: a checkpoint with it has ours too.
        if not self.args.save_only_model:
            self._save_state(
                os.path.join(self.args.output_dir, f"checkpoint-{self.state.global_step}", FOLDER)
            )
        return super()._save_checkpoint(*args, **kwargs)

    def _save_state(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        buffer_in_use = self._step % self._micro_steps_per_generation != 0
        if buffer_in_use:
            rows = [entry | {"grpo_batch": _as_dict(entry["grpo_batch"])} for entry in self._buffered_inputs]
            save_tree(self._buffer_path(folder), rows)
        if not self.accelerator.is_main_process:
            return
        state = {
            "format": FORMAT,
            "swift_rlx": swift_rlx.__version__,
            "rlx_type": self.args.rlx_type,
            "global_step": self.state.global_step,
            "micro_step": self._step,
            "buffer_in_use": buffer_in_use,
            "order": self._order(),
            "reward_names": self.trained_rewards(),
            "algorithm": self.algorithm_state(),
            "rewards": self.reward_state(),
            "resampled": {n: getattr(self, n).drawn for n in self.RESAMPLE_ITERATORS if hasattr(self, n)},
        }
        partial = os.path.join(folder, f"{STATE}.partial")
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(state, file, indent=2)
        os.replace(partial, os.path.join(folder, STATE))

    def trained_rewards(self) -> list[str]:
        """Names of the rewards that the training depends on, in order."""
        return list(self.reward_keys)

    @property
    def _micro_steps_per_generation(self) -> int:
        return self.args.steps_per_generation * self.num_iterations

    def _buffer_path(self, folder: str) -> str:
        return os.path.join(folder, f"buffer-rank{self.accelerator.process_index}.safetensors")

    def _order(self) -> dict[str, Any]:
        """All that the sequence of trained prompts depends on."""
        args = self.args
        return {
            "seed": args.seed,
            "shuffle": bool(self.shuffle_dataset),
            "rows": len(self.train_dataset),
            "data": sample_digest(self.train_dataset),
            "num_generations": self.num_generations,
            "generation_batch_size": args.generation_batch_size,
            "num_iterations": self.num_iterations,
            "ranks": self.accelerator.num_processes,
            "per_device_train_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
        }

    # --- load ----------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; True: from the last complete checkpoint of `output_dir`.

        Raises CheckpointError for an incomplete one, before the first file of it is loaded.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(last_complete(self.args.output_dir) or "") or True
        if isinstance(resume_from_checkpoint, (str, os.PathLike)) and not self.args.resume_only_model:
            refuse_incomplete(str(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # The Trainer calls this once per resumed run, after it skipped the trained rows and before the first step.
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and not self.args.resume_only_model:
            self._load_state(os.path.join(checkpoint, FOLDER))

    def _load_state(self, folder: str) -> None:
        path = os.path.join(folder, STATE)
        try:
            with open(path, encoding="utf-8") as file:
                state = json.load(file)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}), and without it the run cannot go on where it was; resume from a"
                " checkpoint that has it, or take only the weights with --resume_only_model true"
            ) from error
        self._check_state(path, state)
        self._step = state["micro_step"]
        self.load_algorithm_state(state["algorithm"])
        if "rewards" in state:  # checkpoints of earlier versions have none
            self.load_reward_state(state["rewards"])
        for name, drawn in state["resampled"].items():
            getattr(self, name).skip_to(drawn)
        if state["buffer_in_use"]:
            rows = load_tree(self._buffer_path(folder), self.accelerator.device)
            self._buffered_inputs = [row | {"grpo_batch": RLXBatch(**row["grpo_batch"])} for row in rows]
        logger.info(f"swift-rlx: state of step {state['global_step']} restored from {path}")

    def _check_state(self, path: str, state: dict[str, Any]) -> None:
        if state["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has format {state['format']}, this version reads {FORMAT};"
                f" use swift-rlx {state['swift_rlx']}, which wrote it"
            )
        if state["rlx_type"] != self.args.rlx_type:
            raise CheckpointError(
                f"{path} is of rlhf_type {state['rlx_type']}, this run's is {self.args.rlx_type}; use the same, or"
                " take only the weights with --resume_only_model true"
            )
        names = self.trained_rewards()
        if (trained := state.get("reward_names", names)) != names:
            raise CheckpointError(
                f"{path} is of a run with the rewards {', '.join(trained) or 'none'}, this one has"
                f" {', '.join(names) or 'none'}; give the same, in the same order, or take only the weights with"
                " --resume_only_model true"
            )
        now = self._order()
        changed = {key: (old, now.get(key)) for key, old in state["order"].items() if now.get(key) != old}
        if changed:
            listed = ", ".join(f"{key} was {old} and is {new}" for key, (old, new) in changed.items())
            raise CheckpointError(
                f"{path} cannot be continued without training prompts twice or never: {listed}; give the same values,"
                " or take only the weights with --resume_only_model true"
            )


def sample_digest(dataset: Any) -> str:
    """Tells data sets of equal length apart, by the messages of a few rows spread over it."""
    count = len(dataset)
    rows = sorted({at * (count - 1) // (SAMPLED_ROWS - 1) for at in range(SAMPLED_ROWS)}) if count else []
    text = json.dumps([dataset[row]["messages"] for row in rows], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_dict(batch: RLXBatch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(batch)}
