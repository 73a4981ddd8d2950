"""How many tenants are remembered, and what forgetting one changes."""

from __future__ import annotations

import pytest

from scheduler.tenant_service import MAX_IDLE_TENANTS, TenantService


def serve(service: TenantService, tenant: str, cost: int) -> None:
    """One request of a tenant that was alone: it comes, leaves and is charged."""
    service.enter(tenant, service.last_level)
    service.was_last(tenant)
    service.leave(tenant)
    service.charge(tenant, cost)


def test_tenants_that_never_come_back_are_forgotten() -> None:
    service = TenantService()
    for i in range(MAX_IDLE_TENANTS + 50):
        service.charge(f"passer-by {i}", 1)
    service.check(set())  # among them that they are few
    for i in (49, 50):
        service.enter(f"passer-by {i}", 0)
    assert [service.of(f"passer-by {i}") for i in (49, 50)] == [0, 1]


def test_the_one_that_is_idle_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.tenant_service.MAX_IDLE_TENANTS", 2)
    service = TenantService()
    service.charge("a", 10)
    service.charge("b", 20)
    service.charge("a", 1)  # "b" is idle for longer now
    service.charge("c", 30)
    for tenant in ("a", "b", "c"):
        service.enter(tenant, 5)
    assert [service.of(tenant) for tenant in ("a", "b", "c")] == [11, 5, 30]


def test_forgetting_the_last_one_keeps_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever comes to an empty lane would start from nothing, before all others."""
    monkeypatch.setattr("scheduler.tenant_service.MAX_IDLE_TENANTS", 1)
    service = TenantService()
    serve(service, "last", 40)
    service.charge("passer-by", 3)
    assert service.last_level == 40
    service.charge("last", 2)  # forgotten, and back from where it was
    assert service.last_level == 42


def test_who_waits_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.tenant_service.MAX_IDLE_TENANTS", 1)
    service = TenantService()
    for tenant, level in (("a", 1), ("b", 2), ("c", 3)):
        service.enter(tenant, level)
    assert [service.of(tenant) for tenant in ("a", "b", "c")] == [1, 2, 3]
    service.check({"a", "b", "c"})
    with pytest.raises(KeyError):
        service.of("d")
