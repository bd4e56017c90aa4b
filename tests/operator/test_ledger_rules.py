"""Spent budget stays spent, on a real API server: forged, lowered, edited and deleted ledgers are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tensafe_operator.decision.parsing import parse_ledger_status
from tests.support.ledger_objects import SPEC, LedgerObject, Pod, charged_status, make_pod
from tests.support.programs.api_server import RequestRejected
from tests.support.programs.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]

FIRST = {
    "uri": "s3://models/step-10",
    "step": 10,
    "attempt": 1,
    "digest": "sha256:1",
    "statementDigest": "sha256:2",
    "stepsCharged": 10,
}
SECOND = {**FIRST, "uri": "s3://models/step-20", "step": 20}


@pytest.fixture
def pod(control_plane: ControlPlane, namespace: str) -> Pod:
    return make_pod(control_plane, namespace, "trainer")


@pytest.fixture
def ledger(control_plane: ControlPlane, namespace: str, pod: Pod) -> LedgerObject:
    """A ledger that attempt 1 has acquired and charged with ten steps."""
    ledger = LedgerObject(control_plane, namespace)
    assert ledger.write(charged_status(pod), pod) == ""
    return ledger


def charge(pod: Pod, attempt: int, steps: int, incarnation: int = 1) -> dict[str, Any]:
    return {"attempt": attempt, "steps": steps, "incarnation": incarnation, "podUID": pod.uid}


def test_charge_only_grows(ledger: LedgerObject, pod: Pod) -> None:
    assert ledger.write(charged_status(pod, charges=[charge(pod, 1, 12)]), pod) == ""
    assert "never falls" in ledger.write(charged_status(pod, charges=[charge(pod, 1, 11)]), pod)
    assert "should have at least 1" in ledger.write(charged_status(pod, charges=[]), pod)
    assert "entries are only added" in ledger.write(charged_status(pod, charges=[charge(pod, 1, 12)], length=1), pod)
    assert ledger.get()["status"]["charges"][0]["steps"] == 12


def test_charge_never_disappears(ledger: LedgerObject, pod: Pod) -> None:
    both = [charge(pod, 1, 10), charge(pod, 2, 5)]
    assert ledger.write(charged_status(pod, attempt=2, charges=both), pod) == ""
    assert "never disappears" in ledger.write(charged_status(pod, attempt=2, charges=[charge(pod, 2, 15)]), pod)


def test_earlier_attempt_is_fenced(ledger: LedgerObject, pod: Pod) -> None:
    both = [charge(pod, 1, 10), charge(pod, 3, 5)]
    assert ledger.write(charged_status(pod, attempt=3, charges=both), pod) == ""
    more = [charge(pod, 1, 11), charge(pod, 3, 5)]
    refusal = ledger.write(charged_status(pod, attempt=3, charges=more), pod)
    assert "only the attempt that acquired the ledger last" in refusal
    between = [*both, charge(pod, 2, 1)]
    assert "not added afterwards" in ledger.write(charged_status(pod, attempt=3, charges=between), pod)
    assert "is fenced" in ledger.write(charged_status(pod, attempt=1, charges=both), pod)


def test_status_cannot_be_cleared(ledger: LedgerObject, pod: Pod) -> None:
    assert "spent budget stays spent" in ledger.write(None, pod)
    assert ledger.get()["status"]["charges"]


def test_published_checkpoints_never_change_or_disappear(ledger: LedgerObject, pod: Pod) -> None:
    assert ledger.write(charged_status(pod, releases=[FIRST]), pod) == ""
    assert ledger.write(charged_status(pod, releases=[FIRST, SECOND]), pod) == ""
    edited = {**FIRST, "digest": "sha256:other"}
    assert "never changes" in ledger.write(charged_status(pod, releases=[edited, SECOND]), pod)
    for releases in ([FIRST], [SECOND, FIRST], []):
        assert "never disappears" in ledger.write(charged_status(pod, releases=releases), pod)
    without = {key: value for key, value in charged_status(pod).items() if key != "releases"}
    assert "never disappears" in ledger.write(without, pod)


def test_published_checkpoint_counts_the_steps_charged_until_then(ledger: LedgerObject, pod: Pod) -> None:
    cheap = {**FIRST, "stepsCharged": 9}
    assert "stepsCharged of a new checkpoint" in ledger.write(charged_status(pod, releases=[cheap]), pod)
    assert ledger.write(charged_status(pod, releases=[FIRST]), pod) == ""
    later = charged_status(pod, charges=[charge(pod, 1, 30)], releases=[FIRST, {**SECOND, "stepsCharged": 20}])
    assert "stepsCharged of a new checkpoint" in ledger.write(later, pod)
    later["releases"][1]["stepsCharged"] = 30
    assert ledger.write(later, pod) == ""


def test_first_entry_of_a_ledger_is_an_acquisition(control_plane: ControlPlane, namespace: str, pod: Pod) -> None:
    ledger = LedgerObject(control_plane, namespace)
    first = charged_status(pod, releases=[{**FIRST, "stepsCharged": 0}])
    assert "the first entry of a ledger must be an acquisition" in ledger.write(first, pod)
    assert ledger.write(charged_status(pod), pod) == ""


@pytest.mark.parametrize("head", ["\x0b", " ", "\u00a0"])
def test_unreadable_head_is_refused_or_its_charges_are_counted(ledger: LedgerObject, pod: Pod, head: str) -> None:
    error = ledger.write(charged_status(pod, charges=[charge(pod, 1, 11)], head=head), pod)
    read = parse_ledger_status(ledger.get())
    assert read is not None and read.charges[0].steps == (10 if error else 11)


def test_more_steps_than_the_status_can_hold_are_refused(ledger: LedgerObject, pod: Pod) -> None:
    most = 2**31 - 1
    assert ledger.write(charged_status(pod, charges=[charge(pod, 1, most)]), pod) == ""
    both = [charge(pod, 1, most), charge(pod, 2, 1)]
    assert "at most 2147483647 steps" in ledger.write(charged_status(pod, attempt=2, charges=both), pod)


def test_uri_of_a_published_checkpoint_has_a_maximum_length(ledger: LedgerObject, pod: Pod) -> None:
    assert "8000" in ledger.write(charged_status(pod, releases=[{**FIRST, "uri": "s3://" + "x" * 7996}]), pod)


def test_data_set_digest_is_set_once(ledger: LedgerObject, pod: Pod) -> None:
    assert ledger.write(charged_status(pod, datasetDigest="hmac:1"), pod) == ""
    assert "set once" in ledger.write(charged_status(pod, datasetDigest="hmac:2"), pod)
    assert "set once" in ledger.write(charged_status(pod), pod)


def test_spec_never_changes(ledger: LedgerObject, control_plane: ControlPlane) -> None:
    change = json.dumps({"spec": {"mechanism": {"noiseMultiplier": "2"}}})
    patched = control_plane.kubectl(
        *("-n", ledger.namespace, "patch", "privacyledger", ledger.name, "--type=merge", "-p", change), check=False
    )
    assert "spec never changes" in patched.stderr


@pytest.mark.parametrize("rate", ["0", "1.5", "NaN", "inf", "-0.1", "0x1p-2", "half"])
def test_figures_of_a_ledger_must_be_numbers_in_range(rate: str, control_plane: ControlPlane, namespace: str) -> None:
    with pytest.raises(RequestRejected, match="sampleRate"):
        LedgerObject(control_plane, namespace, mechanism={**SPEC["mechanism"], "sampleRate": rate})


def test_only_the_pod_that_acquired_the_ledger_writes(
    ledger: LedgerObject, pod: Pod, control_plane: ControlPlane, namespace: str
) -> None:
    forged = charged_status(pod, charges=[charge(pod, 1, 11)])
    stranger = make_pod(control_plane, namespace, "stranger")
    assert "only the service account" in ledger.write(forged, stranger)
    assert "only the service account" in ledger.write(forged, None)  # a cluster administrator
    sibling = make_pod(control_plane, namespace, "trainer")
    assert "only the pod that acquired" in ledger.write(forged, sibling)
    token = control_plane.kubectl("-n", namespace, "create", "token", "trainer").stdout.strip()
    unbound = Pod("unbound", pod.uid, token, control_plane.kubeconfig_of_token("unbound", token))
    assert "only the pod that acquired" in ledger.write(forged, unbound)
    # No other pod can take over an incarnation. It can acquire the next one.
    assert "acquire the next incarnation" in ledger.write(
        charged_status(sibling, charges=[charge(sibling, 1, 11)]), sibling
    )
    assert ledger.write(charged_status(sibling, charges=[charge(sibling, 1, 11, incarnation=2)]), sibling) == ""
    assert "only the pod that acquired" in ledger.write(
        charged_status(pod, charges=[charge(sibling, 1, 12, incarnation=2)]), pod
    )


@pytest.mark.parametrize(
    "forged",
    [
        {"attempt": 2},
        {"attempt": 64},
        {"attempt": 64, "outcome": "Completed", "releases": [{**FIRST, "final": True}]},
        {"attempt": 2, "charges": {1: 10, 2: 0}},
        {"attempt": 64, "charges": {1: 10, 64: 0}},
        {"attempt": 64, "charges": {1: 10, 64: 0}, "outcome": "Completed", "releases": [{**FIRST, "final": True}]},
        {"charges": {1: 11}},
        {"outcome": "BudgetExhausted", "releases": [{**FIRST, "final": True}]},
        {"outcome": "Completed"},
        {"progress": {"step": 60, "totalSteps": 60}},
        {"datasetDigest": "sha256:1"},
        {"length": 1000},
    ],
    ids=str,
)
def test_forged_write_is_refused(
    ledger: LedgerObject, pod: Pod, control_plane: ControlPlane, namespace: str, forged: dict[str, Any]
) -> None:
    """By a token of the account that is bound to no pod, by a pod of another job, and by a pod of an earlier attempt.

    Each names the UID of the pod that acquired the ledger, and keeps to the rules of the CRD where it can.
    """

    def forge(holder: Pod, acquired: dict[str, Any], writer: Pod) -> str:
        charges = forged.get("charges", {})
        kept = [each for each in acquired["charges"] if each["attempt"] not in charges]
        new = [charge(holder, attempt, steps) for attempt, steps in charges.items() if attempt != 1 or holder is pod]
        status = {**acquired, **forged, "charges": sorted([*kept, *new], key=lambda each: each["attempt"])}
        return ledger.write({**status, "attempt": max(acquired["attempt"], status["attempt"])}, writer)

    token = control_plane.kubectl("-n", namespace, "create", "token", "trainer").stdout.strip()
    unbound = Pod("unbound", pod.uid, token, control_plane.kubeconfig_of_token("unbound", token))
    first, refusals = charged_status(pod), "only the (pod that acquired|service account)|has a charge"
    for writer in (unbound, make_pod(control_plane, namespace, "other-job")):
        assert re.search(refusals, forge(pod, first, writer))
    later = make_pod(control_plane, namespace, "trainer")
    second = charged_status(later, attempt=2, charges=[charge(pod, 1, 10), charge(later, 2, 0)])
    assert ledger.write(second, later) == ""
    assert forge(later, second, pod)
    assert ledger.get()["status"] == {**second, "stepsRecharged": 0}


def test_user_who_impersonates_an_account_without_its_pod_is_refused_with_the_reason(
    ledger: LedgerObject, control_plane: ControlPlane, namespace: str
) -> None:
    """The request of such a user has no `extra` at all. The built-in role `edit` allows it."""
    before = ledger.get()
    text = json.dumps({**before, "status": {**before["status"], "stepsRecharged": 1}})
    command = ("replace", "--subresource=status", "-f", "-", f"--as=system:serviceaccount:{namespace}:trainer")
    refused = control_plane.kubectl(*command, text=text, check=False).stderr
    assert "only the pod that acquired a privacy ledger writes its status" in refused


def test_attempt_that_acquired_the_ledger_has_a_charge(ledger: LedgerObject, pod: Pod) -> None:
    """A ledger without it could not be decoded, and attempt 64 would leave no number for the next attempt."""
    assert "has a charge" in ledger.write(charged_status(pod, attempt=64), pod)


def test_only_the_process_that_acquired_the_ledger_writes(
    control_plane: ControlPlane, namespace: str, pod: Pod
) -> None:
    def by(writer: str, steps: int, incarnation: int = 1) -> dict[str, Any]:
        return charged_status(pod, charges=[{**charge(pod, 1, steps, incarnation), "writer": writer * 32}])

    ledger = LedgerObject(control_plane, namespace)
    assert ledger.write(by("a", 10), pod) == ""
    for other in (by("b", 11), charged_status(pod, charges=[charge(pod, 1, 11)])):
        assert "only the process that acquired the ledger" in ledger.write(other, pod)
    assert ledger.write(by("a", 11), pod) == ""
    assert ledger.write(by("b", 12, incarnation=2), pod) == ""
    assert "only the process that acquired the ledger" in ledger.write(by("a", 13, incarnation=2), pod)
    assert "writer" in ledger.write(by("no number", 14, incarnation=3), pod)


def test_ledger_is_deleted_only_with_the_forget_annotation(ledger: LedgerObject, control_plane: ControlPlane) -> None:
    where = ("-n", ledger.namespace)
    for arguments in (
        ("privacyledger", ledger.name),
        ("privacyledgers", "--all"),
        ("privacyledger", ledger.name, "--force"),
    ):
        assert "is not deleted" in control_plane.kubectl(*where, "delete", *arguments, check=False).stderr
    replaced = control_plane.kubectl(
        *where, "replace", "--force", "-f", "-", text=json.dumps(ledger.get()), check=False
    )
    assert "is not deleted" in replaced.stderr
    annotate = (*where, "annotate", "--overwrite", "privacyledger", ledger.name)
    control_plane.kubectl(*annotate, "tensafe.io/forget=yes")
    assert control_plane.kubectl(*where, "delete", "privacyledger", ledger.name, check=False).returncode
    control_plane.kubectl(*annotate, f"tensafe.io/forget={ledger.get()['metadata']['uid']}")
    control_plane.kubectl(*where, "delete", "privacyledger", ledger.name)


def test_ledger_is_deleted_with_its_namespace(ledger: LedgerObject, control_plane: ControlPlane) -> None:
    control_plane.kubectl("delete", "namespace", ledger.namespace, "--timeout=300s")
    found = control_plane.kubectl("-n", ledger.namespace, "get", "privacyledgers", "-o", "name")
    assert found.stdout == ""
