"""Situations that only a ledger in a cluster has: outages, lost answers, other pods, a recreated ledger."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from urllib3.exceptions import ProtocolError

from tensafe_api.resources.ledger import MAX_PUBLISHED_CHECKPOINTS, LedgerSpec
from tensafe_api.resources.status import EvaluationResult, Progress
from tensorguard.ledger import kubernetes
from tensorguard.ledger.contract import (
    Fenced,
    LedgerCorrupt,
    LedgerForbidden,
    LedgerMissing,
    LedgerUnreachable,
    PublishedCheckpoint,
)
from tensorguard.ledger.kubernetes import KubernetesLedger
from tests.support.ledger_objects import bind_trainer_role
from tests.support.polling import TIMEOUT_SECONDS, Timer, wait_until
from tests.support.programs.controlplane import ControlPlane
from tests.support.roles import install_roles

pytestmark = pytest.mark.cluster


@pytest.fixture
def make_backend(control_plane: ControlPlane, namespace: str, kubernetes_backend: Any) -> Callable[[], Any]:
    return lambda: kubernetes_backend(control_plane, namespace)


class LossyApi:
    """An API client that loses requests (`before` the server gets them) or answers (`after` the server has written)."""

    def __init__(self, api: client.CustomObjectsApi, *, before: int = 0, after: int = 0) -> None:
        self._api, self.before, self.after = api, before, after

    def get_namespaced_custom_object(self, **arguments: Any) -> Any:
        return self._api.get_namespaced_custom_object(**arguments)

    def replace_namespaced_custom_object_status(self, **arguments: Any) -> Any:
        if self.before:
            self.before -= 1
            raise ProtocolError("connection reset before the request was read")
        answer = self._api.replace_namespaced_custom_object_status(**arguments)
        if self.after:
            self.after -= 1
            raise ProtocolError("connection reset before the answer was read")
        return answer


@pytest.mark.parametrize("lost", [{"before": 2}, {"after": 1}, {"before": 1, "after": 1}], ids=str)
def test_lost_answer_neither_loses_nor_repeats_a_charge(lost: dict[str, int], backend: Any, spec: LedgerSpec) -> None:
    ledger = backend.create(spec)
    ledger._api = LossyApi(backend.api, **lost)
    assert ledger.acquire(attempt=1, from_step=0).incarnation == 1
    ledger._api = LossyApi(backend.api, **lost)
    assert ledger.charge(7).steps_charged == 7
    assert backend.open().read().length == 3


def test_pods_of_one_service_account_cannot_write_under_each_others_acquisition(
    backend: Any, spec: LedgerSpec, kubernetes_backend: Any, control_plane: ControlPlane, namespace: str
) -> None:
    first = backend.create(spec)
    first.acquire(attempt=1, from_step=0)
    other = kubernetes_backend(control_plane, namespace, like=backend)
    second = other.open()
    second.acquire(attempt=1, from_step=0)
    with pytest.raises(Fenced, match="incarnation 2 has acquired"):
        first.charge(1)
    assert second.charge(2).steps_charged == 2


def test_api_server_refuses_a_pod_of_another_service_account(
    backend: Any, spec: LedgerSpec, control_plane: ControlPlane, namespace: str, kubernetes_backend: Any
) -> None:
    backend.create(spec)
    stranger = kubernetes_backend(control_plane, namespace, like=backend, account="stranger").open()
    timer = Timer()
    with pytest.raises(Fenced, match=r"only the service account in spec\.serviceAccountName"):
        stranger.acquire(attempt=1, from_step=0)
    assert timer.elapsed_with_cpu < 10, "the refusal of a policy is final"


def test_charge_waits_until_the_api_server_has_loaded_its_roles(
    backend: Any, spec: LedgerSpec, control_plane: ControlPlane, namespace: str
) -> None:
    """An API server that has just started refuses requests that it accepts later. This ended incarnations on pods."""
    ledger = backend.create(spec)
    ledger.acquire(attempt=1, from_step=0)
    control_plane.kubectl("-n", namespace, "delete", "rolebinding", "trainer")
    wait_for_access(control_plane, namespace, "get", "no")
    with ThreadPoolExecutor(1) as other:
        charging = other.submit(ledger.charge, 3)
        with pytest.raises(TimeoutError):
            charging.result(2)
        bind_trainer_role(control_plane, namespace, "trainer")
        assert charging.result(TIMEOUT_SECONDS).steps_charged == 3


def wait_for_access(plane: ControlPlane, namespace: str, verb: str, answer: str) -> None:
    """Wait until the API server answers `answer` to the question whether the trainer may `verb` ledgers."""
    question = ("auth", "can-i", verb, "privacyledgers.tensafe.io", f"--as=system:serviceaccount:{namespace}:trainer")
    wait_until(lambda: plane.kubectl("-n", namespace, *question, check=False).stdout.strip() == answer)


def test_missing_rights_are_reported_after_the_time_to_load_roles(
    backend: Any, spec: LedgerSpec, control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "STARTING_SECONDS", 1.0)
    ledger = backend.create(spec)
    ledger.acquire(attempt=1, from_step=0)
    control_plane.kubectl("-n", namespace, "delete", "rolebinding", "trainer")
    wait_for_access(control_plane, namespace, "get", "no")
    with pytest.raises(LedgerForbidden, match="cannot get resource"):
        ledger.charge(3)
    reader = ("--verb=get", "--resource=privacyledgers.tensafe.io")
    control_plane.kubectl("-n", namespace, "create", "role", "reader", *reader)
    account = f"--serviceaccount={namespace}:trainer"
    control_plane.kubectl("-n", namespace, "create", "rolebinding", "reader", "--role=reader", account)
    wait_for_access(control_plane, namespace, "get", "yes")
    with pytest.raises(Fenced, match="cannot update resource"):
        ledger.charge(3)


def test_deleted_or_recreated_ledger_is_refused(
    backend: Any, spec: LedgerSpec, control_plane: ControlPlane, namespace: str
) -> None:
    ledger = backend.create(spec)
    ledger.acquire(attempt=1, from_step=0)
    name, uid = ledger._where["name"], ledger._uid
    control_plane.kubectl("-n", namespace, "annotate", "privacyledger", name, f"tensafe.io/forget={uid}")
    control_plane.kubectl("-n", namespace, "delete", "privacyledger", name)
    with pytest.raises(LedgerMissing, match="was deleted"):
        ledger.charge(1)
    backend.create(spec)
    with pytest.raises(LedgerCorrupt, match="is not the ledger that this job was admitted with"):
        ledger.charge(1)


def test_progress_and_public_evaluations_are_part_of_the_next_write(backend: Any, spec: LedgerSpec) -> None:
    ledger = backend.create(spec)
    ledger.acquire(attempt=1, from_step=0)
    ledger.set_progress(Progress(step=3, total_steps=2250), EvaluationResult(step=3, loss="0.5", accuracy="0.75"))
    ledger.charge(4)
    ledger.set_progress(Progress(step=4, total_steps=2250))
    ledger.charge(1)
    status = backend.object()["status"]
    assert status["progress"] == {"step": 4, "totalSteps": 2250}
    assert status["evaluations"] == [{"step": 3, "loss": "0.5", "accuracy": "0.75"}]


def test_ledger_holds_max_checkpoints(backend: Any, spec: LedgerSpec) -> None:
    ledger = backend.create(spec)
    ledger.acquire(attempt=1, from_step=0)
    ledger.charge(1)
    for number in range(MAX_PUBLISHED_CHECKPOINTS):
        checkpoint = PublishedCheckpoint(
            number, 1, f"s3://m/step-{number}", "sha256:a", "sha256:b", number == MAX_PUBLISHED_CHECKPOINTS - 1
        )
        ledger.record_checkpoint(checkpoint)
    assert len(ledger.read().checkpoints) == ledger.max_checkpoints
    assert {record["stepsCharged"] for record in backend.object()["status"]["releases"]} == {1}


@pytest.fixture
def own_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane that a test may kill."""
    plane = ControlPlane(tmp_path / "plane")
    try:
        plane.start()
        plane.kubectl("apply", "-f", str(Path(__file__).parents[3] / "crds"))
        plane.wait_for_crds()
        install_roles(plane)
        plane.kubectl("create", "namespace", "clinic")
        yield plane
    finally:
        plane.stop()


def test_charge_waits_while_the_api_server_is_unavailable(
    own_plane: ControlPlane, spec: LedgerSpec, kubernetes_backend: Any
) -> None:
    """The API server is killed and restarted, then stopped past all timeouts: no charge is lost, none is skipped."""
    backend = kubernetes_backend(own_plane, "clinic")
    ledger = backend.create(spec)
    ledger.acquire(attempt=1, from_step=0)
    ledger.charge(1)

    def charge_while(stop: Callable[[], None], start: Callable[[], None], steps: int) -> None:
        stop()
        done = threading.Event()

        def charge() -> None:
            ledger.charge(steps)
            done.set()

        thread = threading.Thread(target=charge)
        thread.start()
        assert not done.wait(3)
        start()
        thread.join(TIMEOUT_SECONDS)
        assert done.is_set()

    charge_while(lambda: own_plane.kill("apiserver"), own_plane.start_api_server, 10)
    assert ledger.read().steps_charged == 11
    pause, resume = (
        lambda number=number: own_plane.kill("apiserver", number) for number in (signal.SIGSTOP, signal.SIGCONT)
    )
    charge_while(pause, resume, 100)
    assert ledger.read().steps_charged == 111

    own_plane.kill("apiserver")
    timer = Timer()
    impatient = KubernetesLedger(**{**backend.arguments, "retry_seconds": 1.0})
    with pytest.raises(LedgerUnreachable, match="has not answered for 1 seconds"):
        impatient.read()
    assert timer.elapsed_with_cpu < 10
