"""The conformance suite passes good rewards and fails bad ones, each for its own rule."""

import random

import pytest

from swift_rlx.errors import ConfigError, PluginError
from swift_rlx.testing import Example, check_reward

EXAMPLES = ["short", "a longer completion", "答案"]


def length_score(completion, **columns):
    return min(len(completion), 100) / 100


def rank_in_group(completions, **columns):
    order = sorted(completions, key=len)
    return [float(order.index(completion)) for completion in completions]


async def judged(completion, **columns):
    return 0.5 if completion else None


class Solved:
    def __call__(self, completions, solution, **columns):
        return [float(c == s) for c, s in zip(completions, solution, strict=True)]


class Drawn:
    def __init__(self):
        self.random = random.Random(0)

    def __call__(self, completions, **columns):
        return [self.random.random() for _ in completions]


@pytest.mark.parametrize("reward", [length_score, rank_in_group, judged])
def test_good_rewards_of_every_form_pass(reward):
    check_reward(reward, examples=EXAMPLES)


def test_a_class_with_columns_and_expected_scores_passes():
    check_reward(
        Solved,
        examples=[
            Example("4", {"solution": "4"}, expected=1.0),
            Example("5", {"solution": "4"}, expected=0.0),
        ],
    )


def test_a_reward_that_draws_at_random_passes_when_it_says_so():
    check_reward(Drawn, examples=EXAMPLES, deterministic=False)
    with pytest.raises(AssertionError, match="repeatable: the same completions scored"):
        check_reward(Drawn, examples=EXAMPLES)


def one_for_all(completions):
    return [1.0]


def not_a_number(completion):
    return float("nan")


def words(completion):
    return "good"


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, completion):
        self.calls += 1
        return self.calls


class EveryOther:
    """Repeatable over an even number of rows, but dependent on the place in the batch."""

    def __init__(self):
        self.even = False

    def __call__(self, completion):
        self.even = not self.even
        return float(self.even)


def fails_on_empty(completion):
    return float(ord(completion[0]) > 0)


def fails_on_chinese(completion):
    return float(len(completion.encode("ascii")))


def fails_on_long(completion):
    if len(completion) > 10_000:
        raise RecursionError("too deep")
    return 0.0


def knows_its_columns(completions, **columns):
    if set(columns) - {"solution"}:
        raise KeyError(f"what is {columns.keys() - {'solution'}}?")
    return [0.0] * len(completions)


def changes_its_rows(completion, facts):
    facts.append(completion)
    return 0.0


@pytest.mark.parametrize(
    ("reward", "rule"),
    [
        (one_for_all, "values: reward 'one_for_all' .* returned 1 values for 3 completions"),
        (not_a_number, "values: reward 'not_a_number' .* returned nan"),
        (words, "values: reward 'words' .* returned str 'good'"),
        (Counting, "repeatable: the same completions scored"),
        (fails_on_empty, "odd text: an empty completion: .*IndexError"),
        (fails_on_chinese, "odd text: a Chinese completion: .*UnicodeEncodeError"),
        (fails_on_long, "odd text: a very long completion: .*RecursionError"),
        (knows_its_columns, "columns: reward .* raised KeyError: .*a_column_that_nobody_knows"),
    ],
)
def test_a_bad_reward_fails_with_the_rule_it_breaks(reward, rule):
    examples = ["short", "a longer completion", "plain"]
    with pytest.raises(AssertionError, match=rf"breaks \d+ rule\(s\) of a reward:\n(.|\n)*- {rule}"):
        check_reward(reward, examples=examples)


def test_a_reward_that_depends_on_the_place_in_the_batch_fails():
    with pytest.raises(AssertionError, match="order: the scores"):
        check_reward(EveryOther, examples=["a", "b"])


def test_a_reward_that_changes_its_arguments_fails():
    with pytest.raises(AssertionError, match="arguments: the reward changed the completions or columns"):
        check_reward(changes_its_rows, examples=[Example("a", {"facts": []})])


def test_a_wrong_expected_score_fails_with_the_example():
    with pytest.raises(AssertionError, match=r"values: example 1 scored 0\.01, expected 0\.5"):
        check_reward(length_score, examples=["x", Example("x", expected=0.5)])


def test_a_slow_reward_fails():
    with pytest.raises(AssertionError, match=r"odd text: an empty completion took .* the limit is 0 s"):
        check_reward(length_score, examples=["x"], max_seconds=0)


def test_a_reward_that_no_other_process_can_import_fails():
    with pytest.raises(AssertionError, match=r"importable: .*; define it at the top level of a module"):
        check_reward(lambda completion: 1.0, examples=["x"])


def test_every_broken_rule_is_listed():
    with pytest.raises(AssertionError) as caught:
        check_reward(lambda completion: 1.0 / len(completion), examples=["x"])
    assert "breaks 2 rule(s)" in str(caught.value)


def test_without_examples_there_is_nothing_to_check():
    with pytest.raises(ConfigError, match="check_reward got no examples"):
        check_reward(length_score, examples=[])


def test_an_unknown_name_is_refused():
    with pytest.raises(PluginError, match="unknown reward 'no_such_reward'"):
        check_reward("no_such_reward", examples=["x"])
