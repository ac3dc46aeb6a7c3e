"""Admission arithmetic, worked by hand."""

from __future__ import annotations

import pytest

from swift_rlx.errors import ConfigError, SchedulingError
from swift_rlx.scheduler import RolloutConfig
from swift_rlx.scheduler.capacity import Capacity


def capacity(**changes):
    return Capacity(RolloutConfig(**{"batch_groups": 4, "shape_capacity": False, **changes}))


def admit_all(books):
    admitted = 0
    while books.room():
        books.admit()
        admitted += 1
    return admitted


def test_at_the_start_one_batch_more_than_the_bound_is_admitted():
    assert admit_all(capacity(max_staleness=2)) == 12
    assert admit_all(capacity(max_staleness=0)) == 4


def test_the_bound_is_in_optimizer_steps_and_places_are_in_whole_batches():
    assert admit_all(capacity(max_staleness=3, steps_per_batch=2)) == 8
    assert admit_all(capacity(max_staleness=1, steps_per_batch=2)) == 4


def test_a_place_is_free_only_after_the_weights_are_live():
    books = capacity(max_staleness=1)
    admit_all(books)
    books.pick(4, step=0, unfinished=0, waited=False)
    assert books.room() == 0
    books.live(1)
    assert books.room() == 4


def test_with_two_optimizer_steps_a_batch_the_first_of_them_frees_nothing():
    books = capacity(max_staleness=2, steps_per_batch=2)
    admit_all(books)
    books.pick(4, step=0, unfinished=0, waited=False)
    books.live(1)
    assert books.room() == 0
    books.live(2)
    assert books.room() == 4


def test_a_dropped_group_gives_its_place_away_at_once():
    books = capacity(max_staleness=0)
    admit_all(books)
    books.drop()
    assert books.room() == 1
    assert books.admit() == 4


def test_nothing_is_admitted_that_will_not_be_trained():
    books = capacity(max_staleness=2, max_batches=2)
    assert admit_all(books) == 8
    books.drop()
    assert admit_all(books) == 1


def test_admitting_without_room_and_going_back_are_refused():
    books = capacity(max_staleness=0)
    admit_all(books)
    with pytest.raises(SchedulingError, match="without room: 4 are charged"):
        books.admit()
    books.live(3)
    with pytest.raises(SchedulingError, match="step 2 went live after 3"):
        books.live(2)


def test_shaping_holds_fewer_groups_while_the_trainer_never_waits():
    books = capacity(max_staleness=4, shape_capacity=True)
    admit_all(books)
    for step in range(60):
        books.pick(4, step, unfinished=1, waited=False)
        books.live(step + 1)
        admit_all(books)
    # One batch, one unfinished group and what is left of the margin, of the 16 that the bound allows.
    assert books.waiting == 5


def test_a_trainer_that_waits_widens_the_shape_up_to_the_bound():
    books = capacity(max_staleness=4, shape_capacity=True)
    admit_all(books)
    for step in range(60):
        books.pick(4, step, unfinished=1, waited=True)
        books.live(step + 1)
        admit_all(books)
    assert books.charged == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_groups": 0}, "batch_groups 0 is refused: it must be at least 1"),
        ({"max_staleness": -1}, "max_staleness -1 is refused: it must be at least 0"),
        ({"group_size": 2, "min_members": 3}, "min_members 3 is refused: it exceeds group_size 2"),
        ({"reserved_share": 1.0}, "reserved_share 1 is refused"),
        ({"max_batches": -1}, "max_batches -1 is refused: use at least 0, or None"),
        ({"request_timeout_s": 0.0}, "request_timeout_s 0 is refused: it must be above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        RolloutConfig(**{"batch_groups": 4, **changes})
