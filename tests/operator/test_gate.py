"""The gate: which policies and CRDs close it, and when everything is read again."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tensafe_api.schema.admission_policy import GUARD_VERSION, VERSION_ANNOTATION, admission_policies
from tensafe_api.schema.crd import DEFINITION_KIND, JOBS, LEDGERS, custom_resource_definition
from tensafe_operator import gate
from tensafe_operator.gate import Gate
from tensafe_operator.runtime.api_errors import FORBIDDEN, ApiError, ApiUnavailable

OBJECTS = {
    (each["kind"], each["metadata"]["name"]): each
    for each in (*(custom_resource_definition(kind) for kind in (JOBS, LEDGERS)), *admission_policies())
}


class Installation:
    """An API server with the policies and CRDs of this release."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = copy.deepcopy(OBJECTS)
        self.error: Exception | None = None
        self.registry = CollectorRegistry()
        self.gate = Gate(self, self.registry)  # type: ignore[arg-type]

    async def get(self, kind: str, namespace: None, name: str) -> dict[str, Any] | None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.objects.get((kind, name))

    def set_version(self, key: tuple[str, str], version: int) -> None:
        self.objects[key]["metadata"]["annotations"][VERSION_ANNOTATION] = str(version)

    def problem(self) -> str:
        asyncio.run(self.gate.check())
        is_open = b"tensafe_guard_present 1.0" in generate_latest(self.registry)
        assert is_open == (not self.gate.problem)
        return self.gate.problem


def test_process_that_does_not_lead_has_found_nothing() -> None:
    """Else the alert would fire for each replica that stands by."""
    assert b"tensafe_guard_present 1.0" in generate_latest(Installation().registry)


def test_installation_of_this_release_opens_the_gate() -> None:
    assert Installation().problem() == ""
    assert {kind for kind, _ in OBJECTS} == {
        DEFINITION_KIND,
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }


@pytest.mark.parametrize("key", OBJECTS)
def test_missing_or_older_object_closes_the_gate(key: tuple[str, str]) -> None:
    installation = Installation()
    installation.set_version(key, GUARD_VERSION - 1)
    assert "{} {}".format(*key) in installation.problem()
    del installation.objects[key]
    assert "{} {} is missing".format(*key) in installation.problem()


def test_newer_installation_opens_the_gate() -> None:
    installation = Installation()
    for key in OBJECTS:
        installation.set_version(key, GUARD_VERSION + 1)
    assert installation.problem() == ""


def test_object_that_may_not_be_read_closes_the_gate() -> None:
    installation = Installation()
    installation.error = ApiError(FORBIDDEN, "no right to read it")
    assert "no right to read it" in installation.problem()


def test_everything_is_read_again_once_the_gate_was_closed_and_is_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation()
    monkeypatch.setattr(gate, "OPEN_SECONDS", 0.0)
    monkeypatch.setattr(gate, "CLOSED_SECONDS", 0.0)
    policy = next(key for key in OBJECTS if key[0] == "ValidatingAdmissionPolicy")

    async def run() -> None:
        waiting = asyncio.create_task(installation.gate.wait_until_opened())
        await asyncio.sleep(0.01)
        assert not waiting.done(), "the gate was open all the time"
        removed = installation.objects.pop(policy)
        while not installation.gate.problem:
            await asyncio.sleep(0)
        installation.error = ApiUnavailable("the API server restarts")
        await asyncio.sleep(0.01)
        assert installation.gate.problem and not waiting.done(), "an answer that does not come opens nothing"
        installation.objects[policy], installation.error = removed, None
        await waiting
        assert not installation.gate.problem

    asyncio.run(run())
