"""Which accelerators the rollout workers get, on machines that are only described."""

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration.devices import SHARED_MEMORY_SHARE, Machine, place_workers, training_devices

CPU = Machine((), ranks=1)
REMEDIES = (
    "NPROC_PER_NODE",
    "--rollout_devices",
    "--vllm_gpu_memory_utilization 0.45 or less",
    "--async_rollout false",
)


def machine(cards: int, ranks: int) -> Machine:
    return Machine(tuple(str(number) for number in range(cards)), ranks)


def test_workers_on_the_cpu_have_no_accelerator() -> None:
    assert place_workers(CPU, 3, ()) == [(), (), ()]


@pytest.mark.parametrize(("cores", "most"), [(1, 4), (32, 128)])
def test_the_cores_bound_the_workers_on_the_cpu(cores: int, most: int) -> None:
    cpu = Machine((), ranks=1, cores=cores)
    assert place_workers(cpu, most, ()) == [()] * most
    with pytest.raises(
        ConfigError,
        match=rf"--rollout_workers 100000 is refused: without an accelerator at most {most} may share the {cores} core",
    ):
        place_workers(cpu, 100_000, ())


def test_naming_accelerators_on_a_machine_without_one_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--rollout_devices 0,1 is refused: this machine shows no accelerator"
    ):
        place_workers(CPU, 1, ("0", "1"))


@pytest.mark.parametrize(("cards", "ranks"), [(1, 1), (2, 2), (8, 8)])
def test_with_every_card_taken_by_a_rank_the_three_ways_out_are_named(cards: int, ranks: int) -> None:
    with pytest.raises(ConfigError) as caught:
        place_workers(machine(cards, ranks), 1, ())
    sentence = str(caught.value)
    assert f"all {cards} visible accelerators" in sentence
    assert all(remedy in sentence for remedy in REMEDIES), sentence


def test_training_on_fewer_ranks_as_the_refusal_advises_leaves_cards_for_the_workers() -> None:
    with pytest.raises(ConfigError, match=r"fewer ranks .*: the workers get the accelerators that follow"):
        place_workers(machine(8, 8), 2, ())
    assert place_workers(machine(8, 6), 2, ()) == [("6",), ("7",)]
    assert training_devices(machine(8, 6), (), [("6",), ("7",)]) == tuple("012345")


def test_workers_get_the_cards_that_no_rank_trains_on() -> None:
    eight = machine(8, 4)
    assert place_workers(eight, 1, ()) == [("4",)]
    assert place_workers(eight, 4, ()) == [("4",), ("5",), ("6",), ("7",)]


def test_cards_are_meant_by_their_ids_and_in_their_order() -> None:
    visible = Machine(("3", "5", "6"), ranks=1)
    assert place_workers(visible, 2, ()) == [("5",), ("6",)]
    assert place_workers(visible, 2, ("6", "5")) == [("6",), ("5",)]


def test_named_cards_are_used_and_the_other_free_ones_are_not() -> None:
    assert place_workers(machine(8, 4), 2, ("5", "7")) == [("5",), ("7",)]


def test_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"accelerator 9 is not among the visible ones \(0,1,2,3\)"):
        place_workers(machine(4, 2), 1, ("3", "9"))


@pytest.mark.parametrize("share", [None, 0.46, 0.9])
def test_a_card_of_a_rank_is_refused_where_there_is_no_room_for_both(share: float | None) -> None:
    with pytest.raises(ConfigError) as caught:
        place_workers(machine(4, 2), 1, ("1",), memory_share=share)
    sentence = str(caught.value)
    assert "--rollout_devices names 1, on which a rank trains" in sentence
    assert all(remedy in sentence for remedy in REMEDIES), sentence


@pytest.mark.parametrize("share", [0.2, SHARED_MEMORY_SHARE])
def test_a_card_is_shared_with_a_rank_where_the_memory_share_leaves_room(share: float) -> None:
    assert place_workers(machine(4, 2), 1, ("1",), memory_share=share) == [("1",)]
    assert place_workers(machine(1, 1), 1, (), memory_share=share) == [("0",)]
    assert place_workers(machine(8, 8), 2, (), memory_share=share) == [("0",), ("1",)]


def test_a_small_memory_share_does_not_move_workers_off_the_free_cards() -> None:
    assert place_workers(machine(4, 2), 2, (), memory_share=0.4) == [("2",), ("3",)]


def test_a_worker_takes_as_many_cards_as_its_tensor_parallel_size() -> None:
    eight = machine(8, 4)
    assert place_workers(eight, 2, (), per_worker=2) == [("4", "5"), ("6", "7")]
    assert place_workers(eight, 1, ("7", "4"), per_worker=2) == [("7", "4")]


@pytest.mark.parametrize(
    ("workers", "wanted", "per_worker", "needed", "there"),
    [
        (5, (), 1, 5, "4 (4,5,6,7)"),
        (3, (), 2, 6, "4 (4,5,6,7)"),
        (2, ("6",), 1, 2, "1 (6)"),
        (1, ("6",), 2, 2, "1 (6)"),
    ],
)
def test_too_few_cards_for_the_workers_are_refused(
    workers: int, wanted: tuple[str, ...], per_worker: int, needed: int, there: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        place_workers(machine(8, 4), workers, wanted, per_worker=per_worker)
    sentence = str(caught.value)
    assert (
        f"{workers} rollout workers of {per_worker} accelerator(s) each need {needed}, and there are {there}"
        in sentence
    )
    assert "lower --rollout_workers or --vllm_tensor_parallel_size" in sentence


def test_training_processes_do_not_see_the_cards_of_the_workers() -> None:
    eight = machine(8, 4)
    assert training_devices(eight, (), [("4",), ("5",)]) == ("0", "1", "2", "3")
    one_process = machine(4, 1)
    assert training_devices(one_process, (), [("1",)]) == ("0",)


def test_beside_named_cards_every_rank_trains_on_as_many_of_the_others() -> None:
    named = ("6", "7"), [("6",), ("7",)]
    assert training_devices(machine(8, 1), *named) == tuple("012345"), "ms-swift splits a large model"
    assert training_devices(machine(8, 3), *named) == tuple("012345")
    assert training_devices(machine(8, 4), *named) == tuple("0123"), "ms-swift wants a multiple"


def test_training_keeps_a_card_that_it_shares_with_a_worker() -> None:
    assert training_devices(machine(1, 1), (), [("0",)]) == ("0",)
    assert training_devices(machine(2, 2), ("1",), [("1",)]) == ("0", "1")


def test_cards_beyond_the_visible_ones_are_taken_at_the_users_word() -> None:
    restricted = Machine(("0", "1"), ranks=2, is_restricted=True)
    assert place_workers(restricted, 2, ("4", "5")) == [("4",), ("5",)]
    assert training_devices(restricted, ("4", "5"), [("4",), ("5",)]) == ("0", "1")
