"""The operator reads policies and CRDs once for many jobs, and again before its answer is old."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tensafe_api.admission_policy import BINDING_KIND, POLICY_KIND, admission_policies
from tensafe_api.crd import DEFINITION_KIND, JOBS, LEDGERS, ResourceKind, custom_resource_definition
from tensafe_operator import ledger_guard
from tensafe_operator.ledger_guard import ABSENT_SECONDS, PRESENT_SECONDS, LedgerGuard
from tensafe_operator.runtime.api_errors import FORBIDDEN, ApiError, ApiUnavailable
from tensafe_operator.served_fields import FieldsDropped


class Policies:
    """An API server with these policies and CRDs, and a clock."""

    def __init__(self) -> None:
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in admission_policies()}
        for policy in self.objects.values():
            for rule in policy["spec"].get("matchConstraints", {}).get("resourceRules", ()):
                rule["scope"] = "*"  # the default of the API server
        for kind in (JOBS, LEDGERS):
            definition = custom_resource_definition(kind)
            self.objects[DEFINITION_KIND, definition["metadata"]["name"]] = definition
        self.error: Exception | None = None
        self.refused: set[str] = set()
        self.requests, self.now = 0, 0.0

    async def get(self, kind: str, namespace: None, name: str) -> dict[str, Any] | None:
        self.requests += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if kind in self.refused:
            raise ApiError(FORBIDDEN, f"no right to read {kind}")
        return self.objects.get((kind, name))

    def schema(self, kind: ResourceKind) -> dict[str, Any]:
        """The schema of a served CRD, to be changed."""
        versions = self.objects[DEFINITION_KIND, f"{kind.plural}.tensafe.io"]["spec"]["versions"]
        return versions[0]["schema"]["openAPIV3Schema"]["properties"]  # type: ignore[no-any-return]

    def guard(self) -> LedgerGuard:
        self.registry = CollectorRegistry()
        return LedgerGuard(self, self.registry, lambda: self.now)  # type: ignore[arg-type]

    def exported(self) -> bool:
        return b"tensafe_guard_present 1.0" in generate_latest(self.registry)


def test_crd_of_ledgers_without_its_rules_is_no_guard(caplog: pytest.LogCaptureFixture) -> None:
    """A pod could record fewer steps than it has charged."""
    policies = Policies()
    del policies.schema(LEDGERS)["status"]["x-kubernetes-validations"]
    assert not asyncio.run(policies.guard().is_present())
    assert not policies.exported()
    assert "the CRD privacyledgers.tensafe.io lacks rules of this release, or is older: status: apply" in caplog.text


def test_many_jobs_share_one_check() -> None:
    policies = Policies()

    async def run() -> None:
        guard = policies.guard()
        assert all(await asyncio.gather(*(guard.is_present() for _ in range(50))))
        assert policies.requests == 6
        policies.now += PRESENT_SECONDS - 1
        assert await guard.is_present() and policies.requests == 6
        assert await guard.is_present(within=0.0) and policies.requests == 12

    asyncio.run(run())
    assert policies.exported()


@pytest.mark.parametrize("missing", [(each["kind"], each["metadata"]["name"]) for each in admission_policies()])
def test_missing_part_is_noticed_and_looked_for_again_soon(
    missing: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    policies = Policies()
    removed = policies.objects.pop(missing)

    async def run() -> None:
        guard = policies.guard()
        assert not await guard.is_present()
        assert not policies.exported() and missing[1] in caplog.text
        policies.objects[missing] = removed
        assert not await guard.is_present(), "the answer is used for some seconds"
        policies.now += ABSENT_SECONDS
        assert await guard.is_present()

    asyncio.run(run())
    assert policies.exported()


def test_policies_that_may_not_be_read_count_as_missing() -> None:
    policies = Policies()
    policies.refused = {POLICY_KIND, BINDING_KIND}
    assert not asyncio.run(policies.guard().is_present())


def test_api_server_that_does_not_answer_is_no_missing_policy() -> None:
    policies = Policies()
    policies.error = ApiUnavailable("the API server does not answer")
    with pytest.raises(ApiUnavailable):
        asyncio.run(policies.guard().is_present())


def test_crds_that_lack_a_field_are_older_and_no_job_is_read_with_them(caplog: pytest.LogCaptureFixture) -> None:
    """The API server drops the field from every stored object, and ε computed from the rest would be too small."""
    policies = Policies()
    mechanism = policies.schema(LEDGERS)["spec"]["properties"]["mechanism"]["properties"]
    removed = mechanism.pop("earlierSteps")

    async def run() -> None:
        guard = policies.guard()
        with pytest.raises(FieldsDropped, match=r"older than the operator, and drop privacyledgers\.spec\.mechanism\."):
            await guard.is_present()
        assert not policies.exported() and "privacyledgers.spec.mechanism.earlierSteps" in caplog.text
        mechanism["earlierSteps"] = removed
        policies.now += ABSENT_SECONDS
        with pytest.raises(FieldsDropped, match="everything is read again"):
            await guard.is_present()
        assert policies.exported()

    asyncio.run(run())


def test_crds_that_become_older_are_noticed_when_the_answer_is_old() -> None:
    policies = Policies()

    async def run() -> None:
        guard = policies.guard()
        assert await guard.is_present()
        del policies.schema(LEDGERS)["spec"]["properties"]["mechanism"]["properties"]["earlierSteps"]
        assert await guard.is_present(), "the answer is used for a minute"
        with pytest.raises(FieldsDropped):
            await guard.is_present(within=0.0)

    asyncio.run(run())


def test_everything_is_read_again_once_the_crds_are_back_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache replaces no object that has not changed, and has those that were read under the older CRDs."""
    monkeypatch.setattr(ledger_guard, "SETTLED_SECONDS", 0.0)
    policies = Policies()
    mechanism = policies.schema(LEDGERS)["spec"]["properties"]["mechanism"]["properties"]
    removed = mechanism["earlierSteps"]

    async def checks_after(count: int) -> None:
        seen = policies.requests + 6 * count
        while policies.requests < seen:
            await asyncio.sleep(0)

    async def run() -> None:
        guard = policies.guard()
        waiting = asyncio.create_task(guard.wait_until_crds_are_back())
        assert await guard.is_present()
        del mechanism["earlierSteps"]
        with pytest.raises(FieldsDropped):
            await guard.is_present(within=0.0)
        await asyncio.wait_for(checks_after(3), 10)
        assert not waiting.done()
        mechanism["earlierSteps"] = removed
        await asyncio.wait_for(waiting, 10)

    asyncio.run(run())


def test_nested_fields_are_named_by_the_outermost_and_only_the_first_are_named() -> None:
    policies = Policies()
    spec = policies.schema(JOBS)["spec"]["properties"]
    for name in ("checkpoint", "lora", "privacy", "training"):
        del spec[name]
    expected = r"tensafetrainingjobs\.spec\.checkpoint, t\w+\.spec\.lora, t\w+\.spec\.privacy and 1 more: A cluster"
    with pytest.raises(FieldsDropped, match=expected):
        asyncio.run(policies.guard().is_present())


def test_kind_that_is_not_served_counts_as_dropped() -> None:
    """No ledger can be found then, and none is lost."""
    policies = Policies()
    (version,) = policies.objects[DEFINITION_KIND, f"{LEDGERS.plural}.tensafe.io"]["spec"]["versions"]
    version["served"] = False
    with pytest.raises(FieldsDropped, match="older than the operator, and drop privacyledgers: "):
        asyncio.run(policies.guard().is_present())


@pytest.mark.parametrize(
    ("kind", "path"), [(JOBS, ("spec", "lora", "initFrom")), (LEDGERS, ("status", "charges"))], ids=["jobs", "ledgers"]
)
def test_version_in_which_objects_are_stored_keeps_every_field(kind: ResourceKind, path: tuple[str, ...]) -> None:
    """The API server drops what that version lacks, also where no client may use it."""
    policies = Policies()
    versions = policies.objects[DEFINITION_KIND, f"{kind.plural}.tensafe.io"]["spec"]["versions"]
    stored = {**copy.deepcopy(versions[0]), "name": "v1alpha0", "served": False}
    versions[0]["storage"] = False
    versions.append(stored)
    assert asyncio.run(policies.guard().is_present())
    schema = stored["schema"]["openAPIV3Schema"]
    for name in path[:-1]:
        schema = schema["properties"][name]
    del schema["properties"][path[-1]]
    with pytest.raises(FieldsDropped, match=rf"drop {kind.plural}\.{'.'.join(path)}: "):
        asyncio.run(policies.guard().is_present())


def test_crds_of_a_later_release_keep_every_field() -> None:
    policies = Policies()
    policies.schema(JOBS)["spec"]["properties"]["later"] = {"type": "string"}
    assert asyncio.run(policies.guard().is_present())


def test_crds_that_may_not_be_read_count_as_older() -> None:
    """As with the roles of a chart that is older than the operator."""
    policies = Policies()
    policies.refused = {DEFINITION_KIND}
    with pytest.raises(FieldsDropped, match=r"cannot be read.*no right to read CustomResourceDefinition"):
        asyncio.run(policies.guard().is_present())
    assert not policies.exported()
