"""`swift-rlx store info | verify | compact`: the files of a store."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from swift_rlx.cli.store_command import StoreCommand

if TYPE_CHECKING:
    from swift_rlx.store import Snapshot
    from swift_rlx.store.compaction import Compacted

DAY_S = 86400.0


def _info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _info(options: argparse.Namespace) -> int:
    from swift_rlx.store import TrajectoryStore

    facts = _facts(TrajectoryStore.open(options.store).snapshot())
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, count in value.items():
                print(f"    {key or '(none)'}: {count:,}")
        else:
            print(f"{name}: {value:,}")
    return 0


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    import numpy as np

    from swift_rlx.store.group_facts import group_facts

    facts = group_facts(snapshot)
    chunks = snapshot.chunks
    prompts = np.concatenate(
        [np.zeros(0, np.uint64), *(np.unique(chunk.fixed("prompt_id")) for chunk in chunks)]
    )
    recipes = Counter(facts.recipes[number] for number in facts.recipe_G.tolist())
    entries = [shard.entry for shard in snapshot.shards]
    return {
        "generation": snapshot.manifest.generation,
        "shards": len(entries),
        "megabytes": round(sum(entry.num_bytes for entry in entries) / 1e6, 2),
        "trajectories": snapshot.num_rows,
        "groups": snapshot.num_groups,
        "prompts": len(np.unique(prompts)),
        "tokens": sum(entry.num_tokens for entry in entries),
        "unscored trajectories": snapshot.num_rows - sum(int(chunk.scored().sum()) for chunk in chunks),
        "trajectories without log-probs": sum(chunk.columns["logprobs"].null_count for chunk in chunks),
        "groups without spread": int((facts.spread_G == 0).sum()),
        "oldest policy step": int(facts.oldest_G.min(initial=2**31 - 1)) if len(facts.oldest_G) else 0,
        "groups by recipe of their rewards": dict(recipes.most_common()),
        "last sealed round by writer": dict(snapshot.manifest.sealed),
    }


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repair", action="store_true", help="take damaged shards out of the store; the rest stays"
    )


def _verify(options: argparse.Namespace) -> int:
    from swift_rlx.store import TrajectoryStore
    from swift_rlx.store.verification import take_out, verify

    store = TrajectoryStore.open(options.store)
    found = verify(store.place, store.manifest())
    print(
        f"generation {found.generation}: {found.shards} shards, {found.rows:,} trajectories, {found.num_bytes:,} bytes"
    )
    for damage in found.damaged:
        print(f"damaged: shard {damage.shard.name}, {damage.shard.num_rows:,} trajectories: {damage.cause}")
    if found.twice:
        print(f"{found.twice:,} trajectories are there twice")
    if found.lost_files:
        print(
            f"{len(found.lost_files)} files belong to no shard: `compact` deletes those that are old enough"
        )
    if found.damaged and options.repair:
        take_out(store.log, found.damaged)
        lost = sum(damage.shard.num_rows for damage in found.damaged)
        print(
            f"took out {len(found.damaged)} shards with {lost:,} trajectories; {found.rows - lost:,} are left"
        )
        return 0 if not found.twice else 1
    print("sound" if found.is_sound else "NOT sound")
    return 0 if found.is_sound else 1


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target-mb", type=float, default=256, help="size of a merged shard (default %(default)g)")
    add(
        "--keep-s",
        type=float,
        default=DAY_S,
        help="files that left the store stay this long, for readers that are about to open them (default a day)",
    )


def _compact(options: argparse.Namespace) -> int:
    from swift_rlx.errors import ConfigError
    from swift_rlx.store import TrajectoryStore
    from swift_rlx.store.compaction import compact, sweep

    if options.target_mb <= 0 or options.keep_s < 0:
        raise ConfigError(
            f"--target-mb {options.target_mb:g} with --keep-s {options.keep_s:g} is refused: use a size above 0, and at"
            " least 0 seconds"
        )
    store = TrajectoryStore.open(options.store)
    done = compact(store.place, store.log, int(options.target_mb * 2**20))
    print(_merging(done))
    if done.refused:
        print(f"{done.refused} buckets were changed by another process meanwhile; run it again for these")
    deleted = sweep(store.place, store.log, options.keep_s, time.time())
    print(f"deleted {len(deleted)} files that are not of the store any more")
    return 0


def _merging(done: Compacted) -> str:
    before, after = done.shards_before, done.shards_after
    if not before:
        return "nothing to merge"
    if before == after:
        return f"nothing to merge; scores were put into the {after} shards that they are of: {done.rows:,} trajectories"
    return f"merged {before} shards into {after}: {done.rows:,} trajectories"


COMMANDS = {
    "info": StoreCommand("show what is in it", "answers.store", _info_arguments, _info),
    "verify": StoreCommand(
        "read every byte and find what is torn or altered",
        "answers.store --repair",
        _verify_arguments,
        _verify,
    ),
    "compact": StoreCommand(
        "merge small shards, and delete old files",
        "answers.store --target-mb 256",
        _compact_arguments,
        _compact,
    ),
}
