"""Reading how a reward wants to be called, from everything that people pass as one."""

import functools

import pytest

from swift_rlx.errors import ConfigError, PluginError
from swift_rlx.registry import Provider
from swift_rlx.rewards import describe_reward, register_reward, resolve_reward
from swift_rlx.rewards.registration import REWARDS
from swift_rlx.rewards.spec import callable_name


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(REWARDS, "_registered", {})
    monkeypatch.setattr(REWARDS, "_scanned", {})


class ORM:
    """The shape of ms-swift's base class."""

    def __init__(self, args=None, **kwargs):
        self.args = args

    def __call__(self, **kwargs):
        raise NotImplementedError


class Accuracy(ORM):
    def __call__(self, completions, solution, **kwargs):
        return [float(c == s) for c, s in zip(completions, solution, strict=True)]


class AsyncJudge(ORM):
    async def __call__(self, completions, question, style="short", **kwargs):
        return [1.0 for _ in completions]


def spec_of(target, name="x"):
    return describe_reward(name, target, provider="test").spec


@pytest.mark.parametrize(
    ("target", "per_completion"),
    [
        (lambda completion: 1.0, True),
        (lambda response: 1.0, True),
        (lambda completions: [1.0], False),
        (lambda responses, **columns: [1.0], False),
        (lambda completion, /, **columns: 1.0, True),
    ],
)
def test_the_first_parameter_says_one_or_all(target, per_completion):
    assert spec_of(target).per_completion is per_completion


def test_parameters_beyond_the_first_are_columns():
    def reward(completion, solution, level=3, *, source, hint=None, **columns):
        return 1.0

    spec = spec_of(reward)
    assert spec.required_columns == ("solution", "source")
    assert spec.optional_columns == ("level", "hint")
    assert spec.takes_any_column


def test_a_function_without_further_parameters_takes_no_columns():
    spec = spec_of(lambda completions: [1.0])
    assert (spec.required_columns, spec.optional_columns, spec.takes_any_column) == ((), (), False)


@pytest.mark.parametrize("target", [Accuracy, Accuracy()])
def test_a_stock_class_and_its_object_are_described_alike(target):
    spec = spec_of(target)
    assert not spec.per_completion
    assert not spec.is_async
    assert spec.required_columns == ("solution",)
    assert spec.takes_any_column


@pytest.mark.parametrize("target", [AsyncJudge, AsyncJudge(), AsyncJudge().__call__])
def test_an_async_call_is_recognized_on_class_object_and_method(target):
    spec = spec_of(target)
    assert spec.is_async
    assert (spec.required_columns, spec.optional_columns) == (("question",), ("style",))


def test_async_functions_are_recognized_through_partials():
    async def reward(completion, scale, **columns):
        return scale

    assert spec_of(reward).is_async
    assert spec_of(functools.partial(reward, scale=2.0)).is_async
    assert spec_of(functools.partial(AsyncJudge(), style="long")).is_async


def test_what_a_partial_fixes_is_not_a_column():
    def reward(completion, scale, solution, **columns):
        return scale

    spec = spec_of(functools.partial(functools.partial(reward, scale=2.0), bias=1))
    assert (spec.required_columns, spec.optional_columns) == (("solution",), ())
    assert spec.bound_columns == {"scale", "bias"}


def test_a_class_is_constructed_with_args_only_where_it_takes_them():
    class Plain:
        def __call__(self, completions):
            return [0.0 for _ in completions]

    class Named:
        def __init__(self, args):
            self.args = args

        __call__ = Plain.__call__

    assert isinstance(describe_reward("x", Plain, args="ARGS").build(), Plain)
    assert describe_reward("x", Named, args="ARGS").build().args == "ARGS"
    assert describe_reward("x", Accuracy, args="ARGS").build().args == "ARGS"


def test_describing_constructs_nothing():
    class Heavy:
        def __init__(self):
            raise AssertionError("loaded 7 GB")

        def __call__(self, completions, **columns):
            return []

    reward = describe_reward("heavy", Heavy, provider=Provider("pack", "2.0"))
    with pytest.raises(
        PluginError, match=r"reward 'heavy' \(pack 2\.0\) cannot be constructed: AssertionError: loaded"
    ) as caught:
        reward.build()
    assert isinstance(caught.value.__cause__, AssertionError)


def test_a_class_whose_constructor_needs_more_is_refused_by_name():
    class Needy:
        def __init__(self, model_path):
            self.model_path = model_path

        def __call__(self, completions):
            return []

    with pytest.raises(PluginError, match=r"'needy' .* cannot be constructed: TypeError: .*model_path"):
        describe_reward("needy", Needy).build()


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (lambda text: 1.0, "'text' as its first parameter: call it 'completion'"),
        (lambda prompts, completions: [1.0], "'prompts' as its first parameter"),
        (lambda: 1.0, "'nothing' as its first parameter"),
        (lambda *args, **kwargs: 1.0, r"'\*args' as its first parameter"),
        (lambda *, completions: [1.0], "takes 'completions' by keyword only"),
        (lambda completion, solution, /: 1.0, "takes 'solution' by position only"),
        (ORM, r"'\*\*kwargs' as its first parameter"),
        ("a string", "is 'a string': offer a function"),
        (object, "the class object, whose objects have no __call__"),
        (max, "has no readable signature: wrap it"),
    ],
)
def test_what_cannot_be_called_as_a_reward_is_refused(target, complaint):
    with pytest.raises(PluginError, match=rf"reward 'x' \(test\) .*{complaint}"):
        spec_of(target)


def test_the_version_is_the_given_one_or_the_distributions():
    @register_reward("versioned", version="7")
    def versioned(completion):
        return 0.0

    def plain(completion):
        return 0.0

    pack = Provider("pack", "1.2.0")
    assert describe_reward("versioned", versioned, provider=pack).spec.version == "7"
    assert describe_reward("plain", plain, provider=pack).spec.version == "1.2.0"
    assert describe_reward("plain", plain, provider="a file").spec.version is None


def test_a_registered_function_is_found_by_name_and_stays_a_function():
    @register_reward("short_answer", scope="batch")
    def short_answer(completions, **columns):
        return [1.0 for _ in completions]

    assert short_answer(["x"]) == [1.0]
    reward = resolve_reward("short_answer")
    assert reward.target is short_answer
    assert reward.spec.scope == "batch"
    assert str(reward.spec.provider) == f"file {__file__}"


def test_classes_objects_and_partials_can_be_registered():
    register_reward("as_class")(Accuracy)
    register_reward("as_object")(Accuracy())
    register_reward("as_partial", version="3")(functools.partial(Accuracy(), solution=["x"]))
    assert resolve_reward("as_class").spec.required_columns == ("solution",)
    assert resolve_reward("as_object").spec.required_columns == ("solution",)
    spec = resolve_reward("as_partial").spec
    assert (spec.required_columns, spec.version) == ((), "3")


def test_registering_again_from_the_same_file_replaces():
    for value in (1.0, 2.0):
        register_reward("again")(lambda completion, value=value: value)
    assert resolve_reward("again").build()("x") == 2.0


@pytest.mark.parametrize("name", ["", "two words", "a/b", "tab\t", None, lambda completion: 1.0])
def test_an_unusable_name_is_refused(name):
    with pytest.raises(ConfigError, match="a reward needs a name without spaces and slashes"):
        register_reward(name)


def test_an_unknown_scope_is_refused():
    with pytest.raises(ConfigError, match="scope 'world': it is 'group' or 'batch'"):
        register_reward("x", scope="world")


def test_what_takes_no_attributes_is_refused():
    with pytest.raises(ConfigError, match="takes no attributes"):
        register_reward("x")(Accuracy().__call__)


def test_a_batch_scope_makes_no_sense_for_one_completion():
    register_reward("odd", scope="batch")(lambda completion: 1.0)
    with pytest.raises(PluginError, match="takes one 'completion' but asks for scope 'batch'"):
        resolve_reward("odd")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Accuracy, "Accuracy"),
        (Accuracy(), "Accuracy"),
        (functools.partial(spec_of, name="y"), "spec_of"),
        (lambda completion: 1.0, "lambda"),
    ],
)
def test_a_callable_from_python_gets_a_readable_name(target, name):
    assert callable_name(target) == name
