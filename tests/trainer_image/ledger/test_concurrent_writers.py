"""Processes of one pod that write the same ledger at the same time, on an API server in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tensorguard.ledger import kubernetes
from tensorguard.ledger.contract import Fenced, LedgerCorrupt
from tensorguard.ledger.kubernetes import KubernetesLedger
from tensorguard.ledger.kubernetes_object import decode, entry_hash
from tests.support.fakes.ledger_server import LedgerServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> LedgerServer:
    monkeypatch.setattr(kubernetes.time, "sleep", lambda seconds: None)
    return LedgerServer()


def process(server: LedgerServer, pod: str = "pod-1") -> KubernetesLedger:
    """The ledger as one more process in `pod` opens it."""
    return KubernetesLedger(server, namespace="n", name="ledger", uid="ledger-uid", pod_uid=pod)  # type: ignore[arg-type]


def holder(server: LedgerServer) -> str:
    state = decode(server.object)
    return next(charge.holder for charge in state.charges if charge.attempt == state.attempt)


def test_two_processes_of_one_pod_never_hold_the_same_acquisition(server: LedgerServer) -> None:
    first, second = process(server), process(server)
    server.before_write.append(lambda: second.acquire(attempt=1, from_step=0))
    assert first.acquire(attempt=1, from_step=0).incarnation == 2
    with pytest.raises(Fenced, match="incarnation 2 has acquired the ledger from another process"):
        second.charge(7)
    assert first.charge(7).steps_charged == server.steps_charged == 7


def test_equal_charge_of_another_process_does_not_pay_for_this_one(server: LedgerServer) -> None:
    """Both hold the ledger as attempt 1, incarnation 1: the second process after the ledger was restored from a copy
    that is older than the first one's acquisition.
    """
    first, second = process(server), process(server)
    first.acquire(attempt=1, from_step=0)
    del server.object["status"]
    second.acquire(attempt=1, from_step=0)
    server.before_write.append(lambda: second.charge(7))
    with pytest.raises(Fenced, match="another process"):
        first.charge(7)
    assert second.charge(7).steps_charged == server.steps_charged


def test_lost_answer_to_an_acquisition_is_recognised(server: LedgerServer) -> None:
    ledger = process(server)
    server.answers_lost = 1
    assert ledger.acquire(attempt=1, from_step=0).incarnation == 1
    assert ledger.charge(3).steps_charged == 3


def test_lost_answer_to_a_charge_is_recognised_and_charged_once(server: LedgerServer) -> None:
    ledger = process(server)
    ledger.acquire(attempt=1, from_step=0)
    server.answers_lost = 1
    assert ledger.charge(7).steps_charged == server.steps_charged == 7
    assert ledger.charge(7).steps_charged == server.steps_charged == 14


def test_acquisition_that_was_replaced_before_its_answer_is_acquired_again(server: LedgerServer) -> None:
    first, second = process(server), process(server)
    server.after_write.append(lambda: second.acquire(attempt=1, from_step=0))
    server.answers_lost = 1
    assert first.acquire(attempt=1, from_step=0).incarnation == 3
    with pytest.raises(Fenced):
        second.charge(1)


def test_charge_whose_answer_was_lost_is_fenced_if_another_process_has_acquired_since(server: LedgerServer) -> None:
    first, second = process(server), process(server)
    first.acquire(attempt=1, from_step=0)
    server.after_write.append(lambda: second.acquire(attempt=1, from_step=0))
    server.answers_lost = 1
    with pytest.raises(Fenced, match="incarnation 2"):
        first.charge(7)
    assert server.steps_charged == 7, "the charge stays, although no step of it was taken"


def test_processes_of_one_pod_have_different_numbers_in_the_ledger(server: LedgerServer) -> None:
    process(server).acquire(attempt=1, from_step=0)
    before = holder(server)
    process(server).acquire(attempt=1, from_step=0)
    assert before != holder(server)
    assert before.startswith("pod-1/") and holder(server).startswith("pod-1/")


def test_ledger_of_an_earlier_version_without_numbers_is_read_and_acquired(server: LedgerServer) -> None:
    process(server).acquire(attempt=1, from_step=0)
    del server.object["status"]["charges"][0]["writer"]
    assert holder(server) == "pod-1"
    ledger = process(server)
    assert ledger.acquire(attempt=2, from_step=0).attempt == 2
    assert ledger.charge(1).steps_charged == 1
    assert "writer" not in server.object["status"]["charges"][0], "the record of an earlier attempt does not change"


def write_as_the_pod(server: LedgerServer, **changes: object) -> None:
    """What a user may do who creates a token of the pod's service account."""
    server.object["status"].update(changes, length=server.object["status"]["length"] + 1)
    server.object["metadata"]["resourceVersion"] += "0"


def test_charge_that_only_its_head_shows_does_not_count(server: LedgerServer) -> None:
    ledger = process(server)
    state = ledger.acquire(attempt=1, from_step=0)
    writer = server.object["status"]["charges"][0]["writer"]
    guessed = entry_hash(state.head, {"kind": "charge", "steps": 7, "writer": writer})
    server.before_write.append(lambda: write_as_the_pod(server, head=guessed))
    with pytest.raises(LedgerCorrupt, match="another process has written to it as this pod"):
        ledger.charge(7)
    assert server.steps_charged == 0


def test_charge_whose_head_is_written_without_it_does_not_count(
    server: LedgerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes.secrets, "token_hex", lambda count: "0" * 2 * count)  # as if it could be guessed
    ledger = process(server)
    state = ledger.acquire(attempt=1, from_step=0)
    guessed = entry_hash(state.head, {"kind": "charge", "steps": 7, "writer": "0" * 32, "nonce": "0" * 32})
    server.before_write.append(lambda: write_as_the_pod(server, head=guessed))
    with pytest.raises(LedgerCorrupt, match="another process has written to it as this pod"):
        ledger.charge(7)
    assert server.steps_charged == 0


@pytest.mark.parametrize(
    "change", [{"outcome": "Completed"}, {"chargedThrough": 1000}, {"datasetDigest": "x"}], ids=str
)
def test_any_write_of_another_process_as_this_pod_ends_this_one(
    server: LedgerServer, change: dict[str, object]
) -> None:
    ledger = process(server)
    ledger.acquire(attempt=1, from_step=0)
    ledger.charge(2)
    write_as_the_pod(server, **change)
    with pytest.raises(LedgerCorrupt, match="who may create tokens of the job's service account"):
        ledger.charge(7)
    assert server.steps_charged == 2


class OlderCrds(LedgerServer):
    """Returns another spec than it has stored, as soon as `older` is set."""

    older = False

    def get_namespaced_custom_object(self, **arguments: Any) -> dict[str, Any]:
        return self._answer(super().get_namespaced_custom_object(**arguments))

    def replace_namespaced_custom_object_status(self, body: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        return self._answer(super().replace_namespaced_custom_object_status(body, **arguments))

    def _answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "spec": {**answer["spec"], "delta": "0.5"}} if self.older else answer


def test_answer_to_a_charge_that_lacks_a_field_pays_for_no_step() -> None:
    """The CRDs have become older between the read and the write."""
    server = OlderCrds()
    ledger = process(server)
    ledger.acquire(attempt=1, from_step=0)
    server.before_write.append(lambda: setattr(server, "older", True))
    with pytest.raises(LedgerCorrupt):
        ledger.charge(2)
    assert server.steps_charged == 2, "it stays charged"
