"""The arguments that the function of a reward gets."""

from functools import partial

import pytest

from swift_rlx.errors import RewardError
from swift_rlx.rewards import OnError, checked_reward, describe_reward


def checked(target, on_error="raise"):
    return checked_reward(describe_reward("x", target, provider="pack 1.0"), OnError.parse(on_error))


def test_columns_reach_the_reward_as_rows_or_as_lists():
    columns = {"solution": ["4", "5"], "level": [1, 2], "trainer_state": "STATE"}
    got = []

    def one(completion, solution, *, trainer_state):
        got.append((completion, solution, trainer_state))
        return 0.0

    def every(completions, solution, **rest):
        got.append((completions, solution, rest))
        return [0.0, 0.0]

    checked(one)(["a", "b"], **columns)
    checked(every)(["a", "b"], **columns)
    assert got == [
        ("a", "4", "STATE"),
        ("b", "5", "STATE"),
        (["a", "b"], ["4", "5"], {"level": [1, 2], "trainer_state": "STATE"}),
    ]


def test_columns_that_a_reward_does_not_name_are_left_out():
    assert checked(lambda completions: [1.0, 2.0])(["a", "b"], solution=["4", "5"]) == [1.0, 2.0]
    assert checked(lambda completion, level=7: level)(["a", "b"], level=[1, 2], other=[3, 4]) == [1.0, 2.0]
    assert checked(lambda completion, level=7: level)(["a"]) == [7.0]


def test_column_names_that_collide_with_parameters_do_no_harm():
    columns = {"completions": [["x"], ["y"]], "completion": ["x", "y"], "self": [1, 2]}
    assert checked(lambda completions, **rest: [len(rest)] * 2)(["a", "b"], **columns) == [2.0, 2.0]
    assert checked(lambda completion, **rest: len(rest))(["a", "b"], **columns) == [2.0, 2.0]


def test_what_a_partial_fixed_is_not_overwritten_by_a_column():
    def reward(completion, level, **columns):
        return level

    assert checked(partial(reward, level=9))(["a", "b"], level=[1, 2]) == [9.0, 9.0]


def test_a_required_column_that_is_absent_is_named():
    with pytest.raises(
        RewardError,
        match=r"reward 'x' \(pack 1\.0\) needs columns \['solution'\], the data set has \['level'\]",
    ):
        checked(lambda completion, solution: 0.0, "none")(["a"], level=[1])
    with pytest.raises(RewardError, match=r"needs \['messages'\], which this trainer does not supply"):
        checked(lambda completion, messages: 0.0)(["a"])


def test_images_are_none_where_no_row_of_the_batch_has_any():
    assert checked(lambda completion, images: float(images is None))(["a", "b"]) == [1.0, 1.0]


def test_a_column_of_the_wrong_length_is_refused():
    with pytest.raises(RewardError, match="was given 3 values of column 'solution' for 2 completions"):
        checked(lambda completion, solution: 0.0, "none")(["a", "b"], solution=[1, 2, 3])


def test_a_reward_that_changes_its_lists_disturbs_nobody():
    completions, solution = ["a", "b"], ["1", "2"]

    def reward(completions, solution):
        completions.clear()
        solution.reverse()
        return [0.0, 0.0]

    checked(reward)(completions, solution=solution)
    assert (completions, solution) == (["a", "b"], ["1", "2"])


def test_completions_made_of_parts_are_passed_on_as_they_are():
    parts = [{"type": "text", "text": "hello"}]
    assert checked(lambda completion: completion is parts)([parts]) == [1.0]
    with pytest.raises(
        RewardError, match=r"on the row \(completion \"\[\{'type': 'text', 'text': 'hello'\}\]\"\)"
    ):
        checked(lambda completion: completion.strip())([parts])


def test_long_completions_and_prompts_are_cut_in_messages():
    messages = [[{"role": "system", "content": "s"}, {"role": "user", "content": "q" * 500}]]
    with pytest.raises(RewardError, match="raised") as caught:
        checked(lambda completion: 1 / 0)(["c" * 500], messages=messages)
    assert len(str(caught.value)) < 350
    assert "q" * 57 + "..." in str(caught.value)
