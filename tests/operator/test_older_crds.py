"""CRDs of an earlier release: the API server drops what ε is computed from, and no figure of a job falls."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from e2e.platform.fixtures.operator_harness import OperatorHarness
from e2e.platform.fixtures.rule_examples import EARLIER_STEPS
from tensafe_api import fixes
from tensafe_api.crd import JOBS, LEDGERS, custom_resource_definition
from tensafe_api.reasons import Reason
from tensafe_operator import names

pytestmark = pytest.mark.cluster

STARTED_FROM = {"spec.lora": {"initFrom": {"uri": "s3://models/final", "earlierSteps": EARLIER_STEPS}}}


def install_older_crds(plane: OperatorHarness) -> None:
    """CRDs that do not know adapters from which a job starts."""
    jobs, ledgers = (custom_resource_definition(kind) for kind in (JOBS, LEDGERS))
    for definition, path in ((jobs, ("spec", "lora", "initFrom")), (ledgers, ("spec", "mechanism", "earlierSteps"))):
        (version,) = definition["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        for name in path[:-1]:
            schema = schema["properties"][name]
            schema.pop("x-kubernetes-validations", None)  # rules may name the field
        del schema["properties"][path[-1]]
        version["schema"]["openAPIV3Schema"].pop("x-kubernetes-validations", None)
        plane.plane.kubectl("replace", "-f", "-", text=json.dumps(definition))


def warnings(plane: OperatorHarness, name: str) -> list[str]:
    """The messages of the operator's Events about a job whose status it does not write."""
    about = ("--field-selector", f"involvedObject.name={name},reason=GuardMissing")
    found = json.loads(plane.plane.kubectl("-n", "clinic", "get", "events", *about, "-o", "json").stdout)
    return [each["message"] for each in found["items"]]


def stalled(plane: OperatorHarness, name: str) -> str:
    """The reason for which a job is stalled; empty if it is not."""
    conditions = ((plane.get("tsj", name) or {}).get("status") or {}).get("conditions", ())
    return "".join(each["reason"] for each in conditions if (each["type"], each["status"]) == ("Stalled", "True"))


def spec_of(plane: OperatorHarness) -> str:
    """The spec of the job `one`, as the API server returns it now."""
    return json.dumps((plane.get("tsj", "one") or {})["spec"])


def start_job(plane: OperatorHarness, changes: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Start the operator and the job `one`; return the job."""
    plane.operator()
    plane.apply("one", changes=changes)
    plane.wait_until(lambda: plane.started("one"))
    job = plane.get("tsj", "one")
    assert job is not None
    return job


def rewrite(plane: OperatorHarness, kind: str, name: str) -> None:
    """Store an object as the API server returns it, as the migration to another storage version does."""
    found = plane.get(kind, name)
    plane.plane.kubectl("replace", "-f", "-", text=json.dumps(found))


def test_job_and_ledger_that_were_rewritten_under_older_crds_are_never_counted(plane: OperatorHarness) -> None:
    before = start_job(plane, STARTED_FROM)
    ledger = before["status"]["ledgerName"]

    plane.operators[0].kill()
    install_older_crds(plane)
    plane.wait_until(lambda: "earlierSteps" not in json.dumps(plane.get("pledger", ledger)))
    plane.wait_until(lambda: "initFrom" not in spec_of(plane))
    rewrite(plane, "tsj", "one")
    rewrite(plane, "pledger", ledger)
    plane.install_our_crds()
    plane.operator()
    plane.wait_until(lambda: warnings(plane, "one"), 120)
    (message,) = warnings(plane, "one")
    assert "has lost fields of its spec" in message and message.endswith(fixes.LEDGER_SHORTENED)
    after = plane.get("tsj", "one")
    assert after is not None and after["status"] == before["status"]


HELD = """
import asyncio, os
import tensafe_operator.runtime.resync as module

async def held(*arguments, resync=module.resync):
    await resync(*arguments)
    open(os.environ["LISTED"], "w").close()
    while not os.path.exists(os.environ["GO"]):
        await asyncio.sleep(0.05)

module.resync = held
"""
"""Code of an operator that has listed everything, and continues once a file exists."""


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed by the guard", "replaced before the guard looks"])
def test_job_that_was_first_read_under_older_crds_starts_with_all_its_fields(
    plane: OperatorHarness, tmp_path: Path, noticed: bool
) -> None:
    """It was created while no operator ran. Nothing changes it later, so no event replaces the cached copy."""
    listed, go = tmp_path / "listed", tmp_path / "go"
    plane.apply("one", changes=STARTED_FROM)
    install_older_crds(plane)
    plane.wait_until(lambda: "initFrom" not in spec_of(plane))
    plane.operator(before=HELD, LISTED=str(listed), GO=str(go))
    plane.wait_until(listed.exists)
    if noticed:
        go.touch()
        plane.wait_until(lambda: warnings(plane, "one"), 120)
    plane.install_our_crds()
    plane.wait_until(lambda: "initFrom" in spec_of(plane))
    go.touch()
    plane.wait_until(lambda: plane.started("one"), 120)
    job = plane.get("tsj", "one")
    assert job is not None
    ledger = plane.get("pledger", job["status"]["ledgerName"])
    assert ledger is not None and ledger["spec"]["mechanism"]["earlierSteps"] == EARLIER_STEPS


def test_no_status_is_written_under_older_crds_that_the_guard_has_not_seen_yet(plane: OperatorHarness) -> None:
    """The write would delete the job's new fields for good, such as the adapter from which it starts."""
    plane.operator(before="import tensafe_operator.ledger_guard as guard; guard.PRESENT_SECONDS = 3600.0")
    plane.apply("one", changes=STARTED_FROM)
    plane.wait_until(lambda: plane.started("one"))
    before = plane.get("tsj", "one")
    assert before is not None

    install_older_crds(plane)
    plane.wait_until(lambda: "initFrom" not in spec_of(plane))
    status = {"jobDeploymentStatus": "Initializing", "rayClusterName": "one-a1-x"}
    merge = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    plane.plane.kubectl("-n", "clinic", "patch", "rayjob", "one-a1", *merge)
    plane.wait_until(lambda: warnings(plane, "one"), 120)
    (message,) = warnings(plane, "one")
    assert "older than the operator, and drop spec.lora.initFrom: " in message

    plane.install_our_crds()
    plane.wait_until(lambda: "initFrom" in spec_of(plane))
    after = plane.get("tsj", "one")
    assert after is not None and after["spec"] == before["spec"]
    plane.wait_until(lambda: "one-a1-x" in json.dumps((plane.get("tsj", "one") or {})["status"]), 120)


def test_ledgers_that_are_not_served_are_not_lost(plane: OperatorHarness) -> None:
    before = start_job(plane)

    plane.operators[0].kill()
    unserved = custom_resource_definition(LEDGERS)
    unserved["spec"]["versions"][0]["served"] = False
    plane.plane.kubectl("replace", "-f", "-", text=json.dumps(unserved))
    get = ("-n", "clinic", "get", "--raw", "/apis/tensafe.io/v1alpha1/namespaces/clinic/privacyledgers")
    plane.wait_until(lambda: plane.plane.kubectl(*get, check=False).returncode)
    second = plane.operator()
    plane.wait_until(lambda: second.leading and "and drop privacyledgers" in second.log.read_text(), 120)
    plane.plane.kubectl("-n", "clinic", "annotate", "rayjob", "one-a1", "seen=again")
    plane.wait_until(lambda: warnings(plane, "one"), 120)
    during = plane.get("tsj", "one")
    assert during is not None and during["status"] == before["status"]
    assert plane.started("one")

    plane.install_our_crds()
    plane.apply("late")
    plane.wait_until(lambda: plane.started("late"), 120)
    after = plane.get("tsj", "one")
    assert after is not None and after["status"]["phase"] == before["status"]["phase"]


def test_no_figure_falls_and_no_job_starts_until_the_crds_are_back(plane: OperatorHarness) -> None:
    before = start_job(plane, STARTED_FROM)
    assert before["spec"]["lora"]["initFrom"]["earlierSteps"]

    install_older_crds(plane)
    ledger = before["status"]["ledgerName"]
    plane.wait_until(lambda: "earlierSteps" not in json.dumps(plane.get("pledger", ledger)))
    plane.apply("late", changes=STARTED_FROM)
    plane.wait_until(lambda: warnings(plane, "late"))
    plane.plane.kubectl("-n", "clinic", "annotate", "rayjob", "one-a1", "seen=again")
    plane.wait_until(lambda: warnings(plane, "one"))
    (message,) = warnings(plane, "one")
    assert message.startswith(f"{names.STATUS_REFUSED}: the CRDs of the cluster are older than the operator")
    assert "drop tensafetrainingjobs.spec.lora.initFrom, privacyledgers.spec.mechanism.earlierSteps" in message
    during = plane.get("tsj", "one")
    assert during is not None and during["status"] == before["status"]
    assert not plane.started("late")

    plane.operators[0].kill()
    second = plane.operator()  # it lists ledgers without the field
    plane.wait_until(lambda: second.leading and "and drop" in second.log.read_text())
    plane.install_our_crds()
    plane.wait_until(lambda: plane.started("late"), 120)
    after = plane.get("tsj", "one")
    assert after is not None
    assert (after["spec"], after["status"]["privacy"]) == (before["spec"], before["status"]["privacy"])
    assert "Traceback" not in plane.logs()
    assert plane.refused() == []


def test_nothing_is_begun_while_the_crd_of_ledgers_lacks_a_rule(plane: OperatorHarness) -> None:
    """A pod could record fewer steps than it has charged. The admission policies see only who writes."""
    weaker = custom_resource_definition(LEDGERS)
    del weaker["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["x-kubernetes-validations"]
    plane.plane.kubectl("replace", "-f", "-", text=json.dumps(weaker))
    plane.operator()
    plane.apply("one")
    plane.wait_until(lambda: stalled(plane, "one") == Reason.GUARD_MISSING.value)
    assert "lacks rules of this release, or is older: status: apply crds/" in plane.logs()
    assert plane.plane.kubectl("get", "pledger", "-A", "-o", "name").stdout == "" and plane.ray_jobs() == []

    plane.install_our_crds()
    plane.wait_until(lambda: plane.started("one"), 120)


def test_version_that_stores_ledgers_without_their_charges_is_noticed(plane: OperatorHarness) -> None:
    """No client may use that version. But the API server stores every write of a ledger in it."""
    definition = custom_resource_definition(LEDGERS)
    versions = definition["spec"]["versions"]
    stored = {**copy.deepcopy(versions[0]), "name": "v1alpha0", "served": False}
    schema = stored["schema"]["openAPIV3Schema"]["properties"]["status"]
    for name in ("x-kubernetes-validations", "required"):
        schema.pop(name, None)
    del schema["properties"]["charges"]
    versions[0]["storage"] = False
    versions.append(stored)
    plane.plane.kubectl("replace", "-f", "-", text=json.dumps(definition))
    plane.operator()
    plane.apply("one")
    plane.wait_until(lambda: warnings(plane, "one"), 120)
    (message,) = warnings(plane, "one")
    assert "older than the operator, and drop privacyledgers.status.charges: " in message
    assert plane.ray_jobs() == []
