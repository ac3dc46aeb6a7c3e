"""The recipe by which the rows of a store have their rewards, with other versions of its sources."""

from __future__ import annotations

from collections.abc import Mapping

from swift_rlx.errors import StoreError
from swift_rlx.store.group_facts import row_recipes
from swift_rlx.store.recipe import Recipe, Scale, Source
from swift_rlx.store.snapshot import Snapshot


def stored_versions(snapshot: Snapshot) -> dict[str, set[str]]:
    """The versions of each source that rows have values of."""
    import pyarrow.compute as pc

    found: dict[str, set[str]] = {}
    for chunk in snapshot.chunks:
        parts = chunk.columns["breakdown"].values
        for part in pc.unique(
            pc.binary_join_element_wise(parts.field("name"), parts.field("version"), "@")
        ).to_pylist():
            name, _, version = part.partition("@")
            found.setdefault(name, set()).add(version)
    return found


def current_recipe(snapshot: Snapshot, known: Mapping[str, set[str]], versions: Mapping[str, str]) -> Recipe:
    """How the rewards were made, with `versions`; a source that is not in it keeps its only stored version.

    Rows without a recipe say what their reward was made of, but not with which weights: where no other rows tell it,
    the weights are 1. Raises `StoreError` where rows have recipes that differ in more than versions, or one on the
    scale of a run, and where a source has several versions and none is named.
    """
    import pyarrow.compute as pc

    if not known:
        raise StoreError(f"the store '{snapshot.url}' has no rewards; make some with `swift-rlx store score`")
    texts = {text for chunk in snapshot.chunks for text in pc.unique(row_recipes(chunk)).to_pylist()}
    named = [recipe for text in sorted(texts) if (recipe := Recipe.parse(text)) is not None]
    if of_runs := sorted(text for text in texts if ": " in text and Recipe.parse(text) is None):
        raise StoreError(
            f"the store '{snapshot.url}' has rewards of '{of_runs[0]}', whose scale was that of a run and cannot be"
            " made again; choose one with `swift-rlx store score`"
        )
    shapes = {(recipe.scale, tuple((one.name, one.weight) for one in recipe.sources)) for recipe in named}
    if len(shapes) > 1:
        raise StoreError(
            f"the store '{snapshot.url}' has rewards of {len(shapes)} kinds: {', '.join(map(str, named))}; choose one"
            " with `swift-rlx store score`"
        )
    scale, parts = next(iter(shapes), (Scale.RAW, tuple((name, 1.0) for name in sorted(known))))
    sources = (
        Source(name, versions[name] if name in versions else _only(name, known), weight)
        for name, weight in parts
    )
    return Recipe(tuple(sources), scale)


def _only(name: str, known: Mapping[str, set[str]]) -> str:
    found = sorted(known.get(name, ()))
    if len(found) != 1:
        raise StoreError(
            f"the scores '{name}' have the versions {', '.join(found) or 'none'}, and nothing computes them; name one"
            f" with --stored {name}@VERSION"
        )
    return found[0]
