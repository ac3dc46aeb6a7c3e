"""A trajectory store as `--dataset`: a row for each group that may train, which ms-swift shuffles and counts.

A row has the prompt as `messages`, to be shown, and the group's id in the column `rlx_group`; tokens, log-probs and
rewards are read from the store where they train.
"""

import functools
import json
from typing import Any

from swift.dataset import DatasetMeta, register_dataset
from swift.dataset.dataset_meta import BaseDatasetLoader

from swift_rlx.store.stored_group import as_text
from swift_rlx.store.trainable import TrainableGroups

GROUP = "rlx_group"


class StoreLoader(BaseDatasetLoader):
    """What ms-swift loads the rows with. `options`: how it reads files, which mean nothing here."""

    def __init__(self, groups: TrainableGroups, **options: Any) -> None:
        self.groups = groups

    def load(
        self, dataset_syntax: Any = None, dataset_meta: Any = None, *, use_hf: bool | None = None
    ) -> Any:
        """The rows, in the order of the groups' ids."""
        return rows_of(self.groups)


def register_store(name: str, groups: TrainableGroups) -> None:
    """From now on, `--dataset name` is these groups."""
    meta = DatasetMeta(
        ms_dataset_id=name,
        hf_dataset_id=name,
        dataset_name=name,
        loader=functools.partial(StoreLoader, groups),
    )
    register_dataset(meta, exist_ok=True)


def rows_of(groups: TrainableGroups) -> Any:
    """The groups as a `datasets.Dataset`."""
    from datasets import Dataset

    found = dict(groups.prompt_columns())
    ids = groups.ids.tolist()
    return Dataset.from_dict(
        {
            "messages": [_messages(found[group_id]) for group_id in ids],
            GROUP: [as_text(group_id) for group_id in ids],
        }
    )


def _messages(columns: str | None) -> list[dict[str, str]]:
    """The prompt as it is shown; where the store has its token ids alone, an empty one."""
    given = json.loads(columns or "{}").get("messages") or [{"role": "user", "content": ""}]
    return [{"role": str(one["role"]), "content": _text(one["content"])} for one in given]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
