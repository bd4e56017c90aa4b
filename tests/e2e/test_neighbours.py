"""Two teams train at the same time under the same names: neither sees, charges or writes anything of the other's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.platform.controlplane import kubectl
from e2e.platform.fixtures.clinic import Clinic
from e2e.platform.trainer.adapters import download

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

SMALL = {
    "spec__training__steps": 8,
    "spec__cluster__workers": 1,
    "spec__cluster__head": {"cpus": "200m", "memory": "2500Mi"},
    "spec__cluster__worker": {"cpus": "300m", "memory": "4Gi"},
}
FORBIDDEN = (
    ("get", "privacyledgers.tensafe.io"),
    ("update", "privacyledgers.tensafe.io/status"),
    ("get", "tensafetrainingjobs.tensafe.io"),
    ("get", "secrets"),
    ("list", "pods"),
)


def test_two_jobs_of_one_name_in_two_namespaces_do_not_see_each_other(
    clinic: Clinic, other_clinic: Clinic, data: Path, tmp_path: Path
) -> None:
    teams = (clinic, other_clinic)
    for team in teams:
        team.upload(data)
        team.provide_model()
    for team, steps in zip(teams, (8, 10)):
        team.submit(**{**SMALL, "spec__training__steps": steps})
    for team in teams:
        team.until_step(1)

    # While both train: who works for one may ask nothing of the other.
    for team, neighbour in (teams, reversed(teams)):
        for verb, resource in (("get", "privacyledgers.tensafe.io"), ("update", "privacyledgers.tensafe.io/status")):
            assert may(team, team, verb, resource), (verb, resource)
        for verb, resource in FORBIDDEN:
            assert not may(team, neighbour, verb, resource), (verb, resource)
    keys = [secret(team) for team in teams]
    assert keys[0] != keys[1]

    for team, steps in zip(teams, (8, 10)):
        over = team.until_over(600)
        assert over["phase"] == "Succeeded", json.dumps(over, indent=1)
        assert over["privacy"]["stepsCharged"] == steps
        assert team.charged(over["ledgerName"]) == steps
        own = tmp_path / team.namespace
        own.mkdir()
        assert download(team, over["finalModel"], own)["statement.json"]


def may(team: Clinic, whose: Clinic, verb: str, resource: str) -> bool:
    """Whether those who train for a team may do something in a namespace."""
    kind, _, subresource = resource.partition("/")
    asked = ("auth", "can-i", verb, kind, f"--as=system:serviceaccount:{team.namespace}:trainer")
    answer = kubectl(
        team.kubeconfig, "-n", whose.namespace, *asked, f"--subresource={subresource}", check=False
    ).stdout.strip()
    assert answer in ("yes", "no"), answer
    return answer == "yes"


def secret(team: Clinic) -> str:
    """The key of a team's job: what its worker mounts."""
    (worker,) = team.pods("worker")
    pod = team.get("pod", worker)
    assert pod is not None
    (name,) = (each["secret"]["secretName"] for each in pod["spec"]["volumes"] if each["name"] == "key")
    found = team.get("secret", name)
    assert found is not None
    return json.dumps(found["data"])
