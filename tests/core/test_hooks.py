import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from gpuyard.core import hooks
from gpuyard.core.hooks import Hook, HookError, KeyedHook


def test_a_provider_is_found() -> None:
    hook: Hook[str] = Hook("estimate")
    hook.register("billing")
    assert hook.get() == "billing"
    assert hook.missing() == []


def test_registering_twice_is_an_error() -> None:
    hook: Hook[str] = Hook("estimate")
    hook.register("billing")
    with pytest.raises(HookError, match="estimate has a provider already: 'billing'"):
        hook.register("another")


def test_registering_the_same_provider_again_is_none() -> None:
    hook: Hook[str] = Hook("estimate")
    hook.register("billing")
    assert hook.register("billing") == "billing"


def test_a_missing_provider_is_an_error_where_it_is_asked() -> None:
    hook: Hook[str] = Hook("estimate")
    with pytest.raises(HookError, match="estimate has no provider"):
        hook.get()


def test_providers_by_key() -> None:
    hook: KeyedHook[str] = KeyedHook("case_handlers", required=("workload", "grant"))
    hook.register("workload", "scheduling")
    assert hook.get("workload") == "scheduling"
    assert hook.keys() == ("workload",)
    assert hook.missing() == ["case_handlers[grant]"]
    with pytest.raises(HookError, match="already"):
        hook.register("workload", "another")
    with pytest.raises(HookError, match=r"case_handlers\[grant\] has no provider"):
        hook.get("grant")


def test_an_optional_provider_may_be_missing() -> None:
    assert Hook[str]("lien", required=False).missing() == []


def test_a_missing_provider_fails_the_system_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "ALL", (Hook[str]("eta"),))
    errors = [error for error in run_checks() if error.id == "core.E001"]
    assert [error.msg for error in errors] == ["core.hooks: eta has no provider."]


def test_every_provider_of_the_platform_is_registered() -> None:
    assert hooks.hooks_missing() == []
    hooks.hooks_require()


def test_a_process_without_a_provider_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "ALL", (Hook[str]("eta"),))
    with pytest.raises(ImproperlyConfigured, match="eta"):
        hooks.hooks_require()
