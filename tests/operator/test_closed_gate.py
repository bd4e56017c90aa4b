"""Policies and CRDs that are missing or older, on a real API server: nothing is begun, and no figure of a job falls."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tensafe_api.schema.admission_policy import GUARD_VERSION, POLICY_NAME, VERSION_ANNOTATION
from tensafe_api.schema.crd import JOBS, LEDGERS, custom_resource_definition
from tests.support.operator_harness import OperatorHarness
from tests.support.operator_process import OperatorProcess
from tests.support.rule_examples import EARLIER_STEPS

pytestmark = pytest.mark.cluster

STARTED_FROM = {"spec.lora": {"initFrom": {"uri": "s3://models/final", "earlierSteps": EARLIER_STEPS}}}
SOON = "import tensafe_operator.gate as gate; gate.OPEN_SECONDS = gate.CLOSED_SECONDS = 1.0"


def install_older_crds(plane: OperatorHarness) -> None:
    """CRDs that do not know adapters from which a job starts."""
    jobs, ledgers = (custom_resource_definition(kind) for kind in (JOBS, LEDGERS))
    for definition, path in ((jobs, ("spec", "lora", "initFrom")), (ledgers, ("spec", "mechanism", "earlierSteps"))):
        definition["metadata"]["annotations"][VERSION_ANNOTATION] = str(GUARD_VERSION - 1)
        (version,) = definition["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        for name in path[:-1]:
            schema = schema["properties"][name]
            schema.pop("x-kubernetes-validations", None)  # rules may name the field
        del schema["properties"][path[-1]]
        version["schema"]["openAPIV3Schema"].pop("x-kubernetes-validations", None)
        plane.plane.kubectl("replace", "-f", "-", text=json.dumps(definition))


def stalled(plane: OperatorHarness, name: str) -> str:
    """The reason for which a job is stalled; empty if it is not."""
    conditions = ((plane.get("TenSafeTrainingJob", name) or {}).get("status") or {}).get("conditions", ())
    return "".join(each["reason"] for each in conditions if (each["type"], each["status"]) == ("Stalled", "True"))


def job(plane: OperatorHarness, name: str) -> dict[str, Any]:
    found = plane.get("TenSafeTrainingJob", name)
    assert found is not None
    return found


def is_ready(operator: OperatorProcess) -> bool:
    try:
        with urllib.request.urlopen(operator.health.replace("healthz", "readyz"), timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


def test_no_figure_falls_and_no_job_starts_until_the_crds_are_back(plane: OperatorHarness) -> None:
    operator = plane.operator(before=SOON)
    plane.apply("one", changes=STARTED_FROM)
    plane.wait_until(lambda: plane.started("one"))
    before = job(plane, "one")

    install_older_crds(plane)
    plane.wait_until(lambda: not is_ready(operator))
    assert "tensafe_guard_present 0.0" in operator.metrics() and "this operator needs" in plane.logs()
    plane.apply("late", changes=STARTED_FROM)
    plane.wait_until(lambda: stalled(plane, "late") == "GuardMissing")
    plane.plane.kubectl("-n", "clinic", "annotate", "rayjob", "one-a1", "seen=again")
    assert plane.ray_jobs() == ["one-a1"]
    assert job(plane, "one")["status"]["privacy"] == before["status"]["privacy"]

    plane.install_our_crds()
    plane.apply("new", changes=STARTED_FROM)
    plane.wait_until(lambda: plane.started("new") and plane.started("late"), 120)
    assert is_ready(operator)
    ledger = plane.get("PrivacyLedger", job(plane, "new")["status"]["ledgerName"])
    assert ledger is not None and ledger["spec"]["mechanism"]["earlierSteps"] == EARLIER_STEPS
    plane.wait_until(lambda: not stalled(plane, "one"))
    after = job(plane, "one")
    assert (after["spec"], after["status"]["privacy"]) == (before["spec"], before["status"]["privacy"])
    assert "Traceback" not in plane.logs()
    assert plane.refused() == []


def test_job_starts_once_the_policies_are_installed(plane: OperatorHarness) -> None:
    plane.plane.kubectl("delete", "validatingadmissionpolicybinding", POLICY_NAME)
    plane.operator(before=SOON)
    plane.apply("one")
    plane.wait_until(lambda: stalled(plane, "one") == "GuardMissing")
    assert plane.plane.kubectl("get", "pledger", "-A", "-o", "name").stdout == "" and plane.ray_jobs() == []
    plane.install_our_crds()
    plane.wait_until(lambda: plane.started("one"), 120)
    assert not stalled(plane, "one")


def test_ledgers_that_are_not_served_are_not_lost(plane: OperatorHarness) -> None:
    first = plane.operator()
    plane.apply("one")
    plane.wait_until(lambda: plane.started("one"))
    before = job(plane, "one")

    first.kill()
    unserved = custom_resource_definition(LEDGERS)
    unserved["spec"]["versions"][0]["served"] = False
    plane.plane.kubectl("replace", "-f", "-", text=json.dumps(unserved))
    get = ("-n", "clinic", "get", "--raw", "/apis/tensafe.io/v1alpha1/namespaces/clinic/privacyledgers")
    plane.wait_until(lambda: plane.plane.kubectl(*get, check=False).returncode)
    second = plane.operator()
    plane.wait_until(lambda: second.leading and "does not serve privacyledgers" in second.log.read_text(), 120)
    assert job(plane, "one")["status"] == before["status"]

    plane.install_our_crds()
    plane.apply("late")
    plane.wait_until(lambda: plane.started("late"), 120)
    assert job(plane, "one")["status"]["phase"] == before["status"]["phase"]
