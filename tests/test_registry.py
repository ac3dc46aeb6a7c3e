"""The registry of plugin names, on fake distributions (scenarios D 45 and F 84)."""

import sys

import pytest

from swift_rlx.errors import PluginError
from swift_rlx.registry import Provider, Registry
from swift_rlx.testing import fake_distribution

GROUP = "swift_rlx.test_things"


@pytest.fixture
def registry():
    return Registry("thing", GROUP)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a one-module package whose entry points are given as name -> source of that attribute's
    module."""
    before = set(sys.modules)

    def install_package(distribution, names, source, module=None, version="1.0"):
        module = module or distribution.replace("-", "_")
        folder = tmp_path / distribution
        fake_distribution(
            folder,
            distribution,
            version=version,
            entry_points={GROUP: {name: f"{module}:{attribute}" for name, attribute in names.items()}},
            modules={f"{module.replace('.', '/')}.py": source},
        )
        monkeypatch.syspath_prepend(folder)
        return module

    yield install_package
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_installed_name_is_found_and_its_provider_is_known(registry, install):
    install("pack-a", {"alpha": "value"}, "value = 41 + 1", version="2.5")
    assert registry.names() == ("alpha",)
    assert registry.providers("alpha") == (Provider("pack-a", "2.5"),)
    assert registry.get("alpha") == 42


def test_nothing_is_imported_before_a_name_is_asked_for(registry, install):
    module = install("pack-a", {"alpha": "value"}, "value = 1")
    registry.names()
    registry.providers("alpha")
    registry.owner("elsewhere", "/x/elsewhere.py")
    assert module not in sys.modules
    registry.get("alpha")
    assert module in sys.modules


def test_two_distributions_with_one_name_are_both_named_and_others_work(registry, install):
    install("pack-a", {"alpha": "value", "only_a": "value"}, "value = 'a'")
    install("pack-b", {"alpha": "value"}, "value = 'b'", version="3.0")
    with pytest.raises(PluginError, match=r"thing 'alpha' is offered by pack-a 1\.0 and by pack-b 3\.0"):
        registry.get("alpha")
    assert registry.get("only_a") == "a"
    assert registry.providers("alpha") == (Provider("pack-a", "1.0"), Provider("pack-b", "3.0"))


def test_a_registered_object_conflicts_with_a_distribution_of_the_same_name(registry, install):
    install("pack-a", {"alpha": "value"}, "value = 'a'")
    registry.register("alpha", "mine", provider="file /home/me/plugin.py")
    with pytest.raises(PluginError, match=r"offered by file /home/me/plugin\.py and by pack-a 1\.0"):
        registry.get("alpha")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import a_module_that_is_not_installed", "No module named 'a_module_that_is_not_installed'"),
        ("value = = 1", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('no CUDA')", "RuntimeError: no CUDA"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("other = 1", "has no attribute 'value'"),
    ],
)
def test_a_package_that_does_not_load_is_named_and_disturbs_no_other(registry, install, source, cause):
    install("pack-good", {"good": "value"}, "value = 1")
    install("pack-bad", {"bad": "value"}, source)
    with pytest.raises(PluginError, match=r"thing 'bad' from pack-bad 1\.0 does not load: ") as caught:
        registry.get("bad")
    assert cause in str(caught.value)
    assert caught.value.__cause__ is not None
    assert registry.get("good") == 1
    [broken] = registry.broken()
    assert (broken.name, broken.provider) == ("bad", Provider("pack-bad", "1.0"))
    assert cause in broken.cause


def test_a_package_repaired_after_a_failure_loads(registry, install, tmp_path):
    module = install("pack-a", {"alpha": "value"}, "raise RuntimeError('not yet')")
    with pytest.raises(PluginError, match="not yet"):
        registry.get("alpha")
    tmp_path.joinpath("pack-a", f"{module}.py").write_text("value = 'repaired by hand'")
    assert registry.get("alpha") == "repaired by hand"
    assert registry.broken() == ()


def test_an_unknown_name_lists_what_there_is_what_is_close_and_what_is_broken(registry, install):
    install("pack-good", {"comment_bonus": "value"}, "value = 1")
    install("pack-bad", {"bad": "value"}, "import a_module_that_is_not_installed")
    registry.register("mine", object(), provider="file /home/me/plugin.py")
    with pytest.raises(PluginError, match="unknown thing 'coment_bonus'") as caught:
        registry.get("coment_bonus")
    message = str(caught.value)
    assert "did you mean 'comment_bonus'?" in message
    assert "'comment_bonus' (pack-good 1.0)" in message
    assert "'mine' (file /home/me/plugin.py)" in message
    assert "broken: 'bad' (pack-bad 1.0: ModuleNotFoundError: No module named 'a_module" in message
    assert "--external_plugins FILE" in message


def test_an_unknown_name_with_nothing_installed_says_so(registry):
    with pytest.raises(PluginError, match="unknown thing 'x'; known: none; a thing in a file"):
        registry.get("x")
    assert registry.providers("x") == ()


def test_a_name_that_a_package_registers_while_loading_is_found(registry, install, monkeypatch):
    monkeypatch.setattr(sys, "the_registry_under_test", registry, raising=False)
    install(
        "pack-a",
        {"alpha": "value"},
        "import sys\nvalue = 1\nsys.the_registry_under_test.register('beta', 2, provider='pack-a')",
    )
    assert registry.get("beta") == 2


def test_the_same_provider_replaces_what_it_registered(registry):
    registry.register("alpha", "first cell", provider="module __main__")
    registry.register("alpha", "second cell", provider="module __main__")
    assert registry.get("alpha") == "second cell"
    registry.register("alpha", "another", provider="file /b.py")
    with pytest.raises(PluginError, match=r"offered by file /b\.py and by module __main__"):
        registry.get("alpha")


def test_code_of_an_installed_package_registers_for_its_distribution(registry, install):
    module = install("pack-a", {"alpha": "value"}, "value = 1")
    assert registry.owner(module, "/x.py") == Provider("pack-a", "1.0")
    assert registry.owner(f"{module}.inner", "/x.py") == Provider("pack-a", "1.0")
    assert registry.owner("_swift_external_5f3a", "/home/me/plugin.py") == Provider("file /home/me/plugin.py")
    assert registry.owner("__main__") == Provider("module __main__")


def test_packages_that_share_a_namespace_are_told_apart(registry, install):
    install("ns-a", {"alpha": "value"}, "value = 1", module="ns.a")
    install("ns-b", {"beta": "value"}, "value = 1", module="ns.b.rewards")
    assert registry.owner("ns.a") == Provider("ns-a", "1.0")
    assert registry.owner("ns.b.impl") == Provider("ns-b", "1.0")


def test_one_offer_as_entry_point_and_as_registration_is_no_conflict(registry, install):
    module = install("pack-a", {"alpha": "value"}, "value = 'entry point'")
    registry.register("alpha", "registered while loading", provider=registry.owner(module, "/x.py"))
    assert registry.providers("alpha") == (Provider("pack-a", "1.0"),)
    assert registry.get("alpha") == "entry point"


def test_subscribers_hear_of_earlier_and_later_registrations(registry, install):
    install("pack-a", {"from_entry_point": "value"}, "value = 1")
    registry.register("early", 1, provider="p")
    heard = []
    registry.on_register(heard.append)
    registry.register("late", 2, provider="p")
    registry.register("late", 3, provider="p")
    assert heard == ["early", "late", "late"]


def test_a_package_installed_later_is_seen_after_a_refresh(registry, install):
    assert registry.names() == ()
    install("pack-a", {"alpha": "value"}, "value = 1")
    assert registry.names() == ()
    registry.refresh()
    assert registry.names() == ("alpha",)


def test_a_half_removed_distribution_hides_no_other(registry, install, tmp_path):
    install("pack-a", {"alpha": "value"}, "value = 1")
    install("pack-b", {"beta": "value"}, "value = 2")
    tmp_path.joinpath("pack-b", "pack_b-1.0.dist-info", "METADATA").unlink()
    assert registry.get("alpha") == 1
    assert registry.names() == ("alpha", "beta")
    assert registry.get("beta") == 2
