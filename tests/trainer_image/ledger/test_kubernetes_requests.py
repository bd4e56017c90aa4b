"""What the ledger in a cluster does with each answer of the API server: retry, read again, give up, or refuse."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from kubernetes.client import ApiException
from urllib3.exceptions import ProtocolError

from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.ledger import kubernetes
from tensorguard.ledger.contract import (
    Fenced,
    LedgerCorrupt,
    LedgerForbidden,
    LedgerMissing,
    LedgerUnreachable,
)
from tensorguard.ledger.kubernetes import REQUEST_SECONDS, STARTING_SECONDS, KubernetesLedger
from tensorguard.ledger.kubernetes_object import decode, entry_hash
from tests.support.fakes.clock import Clock
from tests.support.fakes.ledger_server import LedgerServer

POLICY = 'ValidatingAdmissionPolicy "ledger" denied request: only the pod that acquired it may write'


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(kubernetes, "time", made)
    return made


@pytest.fixture
def server() -> LedgerServer:
    return LedgerServer()


@pytest.fixture
def ledger(server: LedgerServer, clock: Clock) -> KubernetesLedger:
    """Acquired as attempt 1, incarnation 1. Requests are retried for 60 seconds."""
    api: Any = server
    opened = KubernetesLedger(
        api, namespace="clinic", name="triage", uid="ledger-uid", pod_uid="pod-1", retry_seconds=60.0
    )
    opened.acquire(attempt=1, from_step=0)
    server.requests.clear()
    return opened


def refusal(status: int, message: str = "no", **more: Any) -> ApiException:
    error = ApiException(status=status, reason="Because")
    error.body = json.dumps({"message": message, **more})
    return error


UNAVAILABLE = [ProtocolError("reset"), ConnectionResetError("reset"), refusal(500), refusal(503), refusal(429)]
UNAVAILABLE += [refusal(0)]


def test_requests_name_the_object_and_have_a_limit_of_time(server: LedgerServer, ledger: KubernetesLedger) -> None:
    ledger.charge(1)
    where = {"group": "tensafe.io", "version": "v1alpha1", "plural": "privacyledgers"}
    expected = {**where, "namespace": "clinic", "name": "triage", "_request_timeout": REQUEST_SECONDS}
    assert server.requests == [expected, expected]


@pytest.mark.parametrize("error", UNAVAILABLE, ids=repr)
def test_read_waits_while_the_server_is_unavailable(
    error: Exception, server: LedgerServer, ledger: KubernetesLedger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server.read_errors = [error] * 3
    with caplog.at_level(logging.WARNING):
        assert ledger.read().attempt == 1
    assert clock.waits == [0.2, 0.4, 0.8]
    what = (
        f"the API server answers {error.status} Because; retrying"
        if isinstance(error, ApiException)
        else f"the API server does not answer ({type(error).__name__}); retrying"
    )
    assert caplog.messages == [what] * 3


@pytest.mark.parametrize("error", [*UNAVAILABLE, refusal(404), refusal(409)], ids=repr)
def test_charge_is_written_again_and_counted_once(
    error: Exception, server: LedgerServer, ledger: KubernetesLedger, clock: Clock
) -> None:
    server.write_errors = [error] * 3
    assert ledger.charge(7).steps_charged == 7
    assert clock.waits == [0.2, 0.4, 0.8]
    assert server.steps_charged == 7


def test_read_gives_up_after_its_time(server: LedgerServer, ledger: KubernetesLedger, clock: Clock) -> None:
    server.read_errors = [ProtocolError("reset")] * 100
    with pytest.raises(LedgerUnreachable, match="the API server has not answered for 60 seconds"):
        ledger.read()
    assert 60 < clock.now <= 65


def test_write_gives_up_after_its_time(server: LedgerServer, ledger: KubernetesLedger, clock: Clock) -> None:
    server.write_errors = [ProtocolError("reset")] * 100
    with pytest.raises(LedgerUnreachable, match="no write has succeeded for 60 seconds"):
        ledger.charge(1)
    assert 60 < clock.now <= 65
    assert server.steps_charged == 0


def test_deleted_ledger_is_missing(server: LedgerServer, ledger: KubernetesLedger) -> None:
    server.read_errors = [refusal(404, details={"name": "triage"})]
    with pytest.raises(LedgerMissing, match="there is no ledger privacyledgers/triage in clinic: it was deleted"):
        ledger.charge(1)


@pytest.mark.parametrize("body", ["404 page not found", json.dumps({"message": "no", "details": {}})])
def test_kind_that_is_not_served_is_no_missing_ledger(
    body: str, server: LedgerServer, ledger: KubernetesLedger, clock: Clock
) -> None:
    """As while an administrator replaces the CRDs."""
    unserved = ApiException(status=404, reason="Not Found")
    unserved.body = body
    server.read_errors = [unserved]
    ledger.charge(1)
    server.read_errors = [unserved] * 100
    with pytest.raises(LedgerUnreachable):
        ledger.charge(1)


@pytest.mark.parametrize("status", [400, 403, 422])
def test_refusal_by_a_policy_is_final(
    status: int, server: LedgerServer, ledger: KubernetesLedger, clock: Clock
) -> None:
    server.write_errors = [refusal(status, POLICY)]
    with pytest.raises(Fenced, match=r"refuses this write to privacyledgers/triage in clinic: .*denied request"):
        ledger.charge(1)
    server.read_errors = [refusal(status, POLICY)]
    with pytest.raises(LedgerForbidden, match=r"privacyledgers/triage in clinic cannot be read: .*denied request"):
        ledger.read()
    assert clock.waits == []


@pytest.mark.parametrize("status", [401, 403])
def test_missing_rights_are_retried_while_a_server_may_be_starting(
    status: int, server: LedgerServer, ledger: KubernetesLedger, clock: Clock
) -> None:
    server.read_errors = [refusal(status)] * 3
    server.write_errors = [refusal(status)] * 3
    assert ledger.charge(2).steps_charged == 2
    started = clock.now
    server.read_errors = [refusal(status, "trainer cannot get privacyledgers")] * 100
    with pytest.raises(LedgerForbidden, match="cannot be read: trainer cannot get privacyledgers"):
        ledger.read()
    assert STARTING_SECONDS <= clock.now - started <= STARTING_SECONDS + 5
    server.read_errors = []
    server.write_errors = [refusal(status)] * 100
    started = clock.now
    with pytest.raises(Fenced):
        ledger.charge(1)
    assert STARTING_SECONDS <= clock.now - started <= STARTING_SECONDS + 5


def test_message_of_the_server_is_its_status_where_it_sends_no_json(
    server: LedgerServer, ledger: KubernetesLedger
) -> None:
    for body in (None, "not json", "[]", '{"other": 1}'):
        error = ApiException(status=400, reason="Bad Request")
        error.body = body
        server.read_errors = [error]
        with pytest.raises(LedgerForbidden, match=r"cannot be read: 400 Bad Request$"):
            ledger.read()


def test_ledger_of_another_uid_is_refused(server: LedgerServer, ledger: KubernetesLedger) -> None:
    server.object["metadata"]["uid"] = "another"
    with pytest.raises(LedgerCorrupt, match="is not the ledger that this job was admitted with, which was deleted"):
        ledger.read()


def test_ledger_that_became_shorter_is_refused(server: LedgerServer, ledger: KubernetesLedger) -> None:
    earlier = dict(server.object["status"])
    ledger.charge(5)
    server.object["status"] = earlier
    with pytest.raises(LedgerCorrupt, match="has 2 entries and had 3: it was restored from a copy"):
        ledger.read()


def test_only_the_holder_writes(server: LedgerServer, ledger: KubernetesLedger) -> None:
    api: Any = server
    other = KubernetesLedger(api, namespace="clinic", name="triage", uid="ledger-uid", pod_uid="pod-2")
    with pytest.raises(Fenced, match="only the incarnation that has acquired"):
        other.charge(1)
    with pytest.raises(Fenced, match="attempt 0 is fenced: attempt 1 has acquired the ledger"):
        other.acquire(attempt=0, from_step=0)
    with pytest.raises(Fenced, match="only the incarnation that has acquired"):
        other.charge(1)
    assert [other.acquire(attempt=number, from_step=0).incarnation for number in (1, 2, 2)] == [2, 1, 2]
    with pytest.raises(
        Fenced, match=r"attempt 1, incarnation 1 is fenced: attempt 2, incarnation 2 has acquired .* another process"
    ):
        ledger.charge(1)
    other.close()
    with pytest.raises(Fenced, match="only the incarnation that has acquired"):
        other.charge(1)
    assert server.steps_charged == 0


def test_failed_acquisition_ends_the_earlier_one(server: LedgerServer, ledger: KubernetesLedger) -> None:
    server.write_errors = [refusal(422, POLICY)]
    with pytest.raises(Fenced):
        ledger.acquire(attempt=1, from_step=0)
    with pytest.raises(Fenced, match="only the incarnation that has acquired"):
        ledger.charge(1)


def test_acquisition_starts_at_its_step(server: LedgerServer, ledger: KubernetesLedger) -> None:
    ledger.charge(6)
    state = ledger.acquire(attempt=1, from_step=4)
    assert (state.start_steps, state.charged_through, state.steps_recharged) == ((0, 4), 4, 2)


def test_progress_and_evaluations_are_written_with_the_next_charge(
    server: LedgerServer, ledger: KubernetesLedger
) -> None:
    ledger.set_progress(Progress(step=3, total_steps=9), EvaluationResult(step=3, loss="0.7"))
    ledger.set_progress(Progress(step=4, total_steps=9))
    assert "evaluations" not in server.object["status"] or server.object["status"]["evaluations"] == []
    ledger.charge(1)
    status = server.object["status"]
    assert (status["progress"]["step"], [each["step"] for each in status["evaluations"]]) == (4, [3])
    ledger.charge(1)
    status = server.object["status"]
    assert (status["progress"]["step"], [each["step"] for each in status["evaluations"]]) == (4, [3])
    server.object["status"]["evaluations"] = []
    ledger.charge(1)
    assert server.object["status"]["evaluations"] == [], "an evaluation is written once"


def test_ledger_extends_what_it_was_before(server: LedgerServer, ledger: KubernetesLedger) -> None:
    before = ledger.read()
    as_created = {name: value for name, value in server.object.items() if name != "status"}
    assert ledger.extends(decode(as_created).head, 1)
    assert ledger.extends(before.head, before.length)
    assert not ledger.extends("another", before.length)
    ledger.charge(1)
    now = ledger.read()
    assert ledger.extends(before.head, before.length) and ledger.extends(now.head, now.length)
    assert not ledger.extends(now.head, now.length + 1)
    assert not ledger.extends(now.head, 0)


def test_nothing_waits_for_a_lock(server: LedgerServer, ledger: KubernetesLedger, clock: Clock) -> None:
    ledger.wait_until_free()
    assert server.requests == [] and clock.waits == []


def test_heads_are_a_chain_over_the_entries_their_writer_and_a_random_number(
    server: LedgerServer, ledger: KubernetesLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[str] = []

    def token_hex(count: int) -> str:
        numbers.append(f"{len(numbers):0{2 * count}x}")
        return numbers[-1]

    monkeypatch.setattr(kubernetes.secrets, "token_hex", token_hex)
    opened = ledger.read().head
    (record,) = server.object["status"]["charges"]
    claim = {"kind": "claim", "attempt": 2, "incarnation": 1, "fromStep": 3, "holder": f"pod-1/{record['writer']}"}
    acquired = ledger.acquire(attempt=2, from_step=3)
    assert acquired.head == entry_hash(opened, {**claim, "writer": record["writer"], "nonce": numbers[0]})
    charge = {"kind": "charge", "steps": 5, "writer": record["writer"], "nonce": f"{1:032x}"}
    assert ledger.charge(5).head == entry_hash(acquired.head, charge)
