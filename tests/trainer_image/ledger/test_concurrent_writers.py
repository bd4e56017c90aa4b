"""Processes of one pod that write the same ledger at the same time, on an API server in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.client import ApiException
from urllib3.exceptions import ProtocolError

from e2e.platform.fixtures.ledger_objects import SPEC
from tensorguard.ledger import kubernetes
from tensorguard.ledger.contract import Fenced
from tensorguard.ledger.kubernetes import KubernetesLedger
from tensorguard.ledger.kubernetes_object import decode


class Server:
    """One PrivacyLedger under optimistic concurrency, as the API server stores it.

    Attributes:
        before_write, after_write: what other processes do just before the next write is stored, and between the write
            and its answer. Each is called once.
        answers_lost: how many answers of writes are lost next.
    """

    def __init__(self) -> None:
        self.object: dict[str, Any] = {"metadata": {"uid": "ledger-uid", "resourceVersion": "1"}, "spec": SPEC}
        self.before_write: list[Callable[[], object]] = []
        self.after_write: list[Callable[[], object]] = []
        self.answers_lost = 0

    def get_namespaced_custom_object(self, **arguments: Any) -> dict[str, Any]:
        return copy.deepcopy(self.object)

    def replace_namespaced_custom_object_status(self, body: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        if self.before_write:
            self.before_write.pop()()
        version = self.object["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ApiException(409, "Conflict")
        self.object = copy.deepcopy(body)
        self.object["metadata"]["resourceVersion"] = str(int(version) + 1)
        answer = copy.deepcopy(self.object)
        lost, self.answers_lost = self.answers_lost > 0, max(0, self.answers_lost - 1)
        if self.after_write:
            self.after_write.pop()()
        if lost:
            raise ProtocolError("connection reset before the answer was read")
        return answer

    @property
    def steps_charged(self) -> int:
        return decode(self.object).steps_charged


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(kubernetes.time, "sleep", lambda seconds: None)
    return Server()


def process(server: Server, pod: str = "pod-1") -> KubernetesLedger:
    """The ledger as one more process in `pod` opens it."""
    return KubernetesLedger(server, namespace="n", name="ledger", uid="ledger-uid", pod_uid=pod)  # type: ignore[arg-type]


def holder(server: Server) -> str:
    state = decode(server.object)
    return next(charge.holder for charge in state.charges if charge.attempt == state.attempt)


def test_two_processes_of_one_pod_never_hold_the_same_acquisition(server: Server) -> None:
    first, second = process(server), process(server)
    server.before_write.append(lambda: second.acquire(attempt=1, from_step=0))
    assert first.acquire(attempt=1, from_step=0).incarnation == 2
    with pytest.raises(Fenced, match="incarnation 2 has acquired the ledger from another process"):
        second.charge(7)
    assert first.charge(7).steps_charged == server.steps_charged == 7


def test_equal_charge_of_another_process_does_not_pay_for_this_one(server: Server) -> None:
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


def test_lost_answer_to_an_acquisition_is_recognised(server: Server) -> None:
    ledger = process(server)
    server.answers_lost = 1
    assert ledger.acquire(attempt=1, from_step=0).incarnation == 1
    assert ledger.charge(3).steps_charged == 3


def test_lost_answer_to_a_charge_is_recognised_and_charged_once(server: Server) -> None:
    ledger = process(server)
    ledger.acquire(attempt=1, from_step=0)
    server.answers_lost = 1
    assert ledger.charge(7).steps_charged == server.steps_charged == 7
    assert ledger.charge(7).steps_charged == server.steps_charged == 14


def test_acquisition_that_was_replaced_before_its_answer_is_acquired_again(server: Server) -> None:
    first, second = process(server), process(server)
    server.after_write.append(lambda: second.acquire(attempt=1, from_step=0))
    server.answers_lost = 1
    assert first.acquire(attempt=1, from_step=0).incarnation == 3
    with pytest.raises(Fenced):
        second.charge(1)


def test_charge_whose_answer_was_lost_is_fenced_if_another_process_has_acquired_since(server: Server) -> None:
    first, second = process(server), process(server)
    first.acquire(attempt=1, from_step=0)
    server.after_write.append(lambda: second.acquire(attempt=1, from_step=0))
    server.answers_lost = 1
    with pytest.raises(Fenced, match="incarnation 2"):
        first.charge(7)
    assert server.steps_charged == 7, "the charge stays, although no step of it was taken"


def test_processes_of_one_pod_have_different_numbers_in_the_ledger(server: Server) -> None:
    process(server).acquire(attempt=1, from_step=0)
    before = holder(server)
    process(server).acquire(attempt=1, from_step=0)
    assert before != holder(server)
    assert before.startswith("pod-1/") and holder(server).startswith("pod-1/")


def test_ledger_of_an_earlier_version_without_numbers_is_read_and_acquired(server: Server) -> None:
    process(server).acquire(attempt=1, from_step=0)
    del server.object["status"]["charges"][0]["writer"]
    assert holder(server) == "pod-1"
    ledger = process(server)
    assert ledger.acquire(attempt=2, from_step=0).attempt == 2
    assert ledger.charge(1).steps_charged == 1
    assert "writer" not in server.object["status"]["charges"][0], "the record of an earlier attempt does not change"
