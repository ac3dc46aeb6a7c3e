"""Columns that rewards ask for, against the data set (scenarios D 43, F 83)."""

import pytest

from swift_rlx.rewards import describe_reward, missing_columns, reserved_columns


def spec(target, name="x"):
    return describe_reward(name, target, provider="pack 1.0").spec


def test_nothing_is_missing_where_the_columns_are_there():
    specs = [spec(lambda completion, solution: 0.0), spec(lambda completions, level=1, **columns: [])]
    assert missing_columns(specs, ["messages", "solution", "dataset"]) is None


def test_a_missing_column_is_named_with_the_reward_and_what_there_is():
    sentence = missing_columns([spec(lambda completion, solution: 0.0)], ["messages", "gold"])
    assert sentence.startswith(
        "reward 'x' (pack 1.0) needs columns ['solution'], the data set has ['gold', 'messages']"
    )
    assert (
        """a column of another name, such as 'gold', becomes 'solution' with --columns '{"gold": "solution"}'"""
        in (sentence)
    )


def test_the_column_of_another_name_is_the_closest_that_is_there():
    sentence = missing_columns([spec(lambda completion, solution: 0.0)], ["level", "messages", "solutions"])
    assert """--columns '{"solutions": "solution"}'""" in sentence


def test_where_there_is_nothing_to_rename_it_has_to_be_added():
    sentence = missing_columns([spec(lambda completion, solution: 0.0)], ["messages", "dataset"])
    assert (
        """add it to the rows, or a column of another name becomes 'solution' with --columns '{"its name":"""
        in sentence
    )


@pytest.mark.parametrize(
    ("columns", "there"), [(["messages", "gold", "level"], ", such as 'gold' or 'level'"), (["messages"], "")]
)
def test_a_name_that_ms_swift_takes_for_the_answer_is_not_named_where_nothing_was_taken(columns, there):
    """Rows that end with the question: a column `answer_key` would be in them as their answer."""
    sentence = missing_columns([spec(lambda completion, answer_key: 0.0)], columns, has_response=False)
    assert (
        f"; the data set has no column 'answer_key': let the reward read one that it has{there} (" in sentence
    )
    assert "--columns" not in sentence
    assert "--columns" in missing_columns([spec(lambda completion, answer_key: 0.0)], columns)


def test_every_reward_with_a_missing_column_is_named():
    specs = [spec(lambda completion, a: 0.0, "first"), spec(lambda completion, b, c: 0.0, "second")]
    sentence = missing_columns(specs, ["c"])
    assert "'first' (pack 1.0) needs columns ['a']" in sentence
    assert "'second' (pack 1.0) needs columns ['b']" in sentence


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("answer", "takes a column 'answer' as the assistant's response"),
        ("target", "--disable_auto_column_mapping true"),
        ("response", """--columns '{"response": "solution"}'"""),
        (
            "question",
            "takes a column 'question' as part of the prompt: let the reward read it from `messages`",
        ),
        ("system", "as part of the prompt"),
        ("image", "renames a column 'image': let the reward read 'images'"),
        ("rewards", "'rewards' is a field of ms-swift's own"),
        ("completions", "'completions' is a field of ms-swift's own"),
    ],
)
def test_a_column_that_ms_swift_renames_or_swallows_gets_the_way_out(column, hint):
    namespace = {}
    exec(f"def reward(completion, {column}): return 0.0", namespace)
    # `rewards` stays missing although the data set has it: ms-swift keeps it for itself.
    assert hint in missing_columns([spec(namespace["reward"])], ["messages", "rewards", "completions"])


def test_what_ms_swift_supplies_itself_counts_as_there():
    def reward(
        completion, messages, prompt_id, request_id, finish_reason, is_truncated, rollout_infos,
        response_token_ids, trainer_state, images, videos, audios, tools, objects,
    ):  # fmt: skip
        return 0.0

    assert missing_columns([spec(reward)], []) is None


def test_ordinary_columns_are_not_reserved():
    reserved = reserved_columns(["messages", "images", "solution", "level", "dataset", "teacher_prompt"])
    assert reserved.errors == ()
    assert reserved.warnings == ()


@pytest.mark.parametrize("column", ["completions", "response_token_ids", "rollout_logprobs", "add_eos"])
def test_a_column_that_would_break_training_is_an_error(column):
    [error] = reserved_columns(["messages", column]).errors
    assert f"the data set has a column '{column}', which" in error
    assert f"""--columns '{{"{column}": "{column}_"}}'""" in error


@pytest.mark.parametrize("column", ["rewards", "advantages", "prompt_id", "finish_reason", "is_truncated"])
def test_a_column_that_no_reward_would_see_is_a_warning(column):
    reserved = reserved_columns(["messages", column])
    assert reserved.errors == ()
    assert f"column '{column}' is taken for ms-swift's own field" in reserved.warnings[0]


def test_a_column_that_hides_the_trainer_state_is_a_warning():
    assert "'trainer_state' hides the trainer's state" in reserved_columns(["trainer_state"]).warnings[0]
