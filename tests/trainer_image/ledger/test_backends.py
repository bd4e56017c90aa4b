"""Which ledger a worker opens, and whether its job was suspended, with clients of Kubernetes that are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger import backends
from tensorguard.ledger.backends import LOCK_WAIT_SECONDS, POD_UID, JobObject, LedgerLocation, open_ledger
from tensorguard.ledger.file import FileLedger
from tensorguard.ledger.kubernetes import KubernetesLedger

LOCATION = LedgerLocation(namespace="clinic", job="triage", ledger="triage-ledger", ledger_uid="ledger-uid")


class Api:
    """Answers requests for the job with `answer`, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def get_namespaced_custom_object(self, *where: str, _request_timeout: float) -> Any:
        self.asked.append((*where, _request_timeout))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Api]:
    def answering(answer: Any) -> Api:
        made = Api(answer)
        monkeypatch.setattr(backends, "_api", lambda: made)
        return made

    return answering


def test_ledger_without_a_location_is_the_file_of_the_run(tmp_path: Path, spec: LedgerSpec) -> None:
    FileLedger.create(tmp_path, spec)
    ledger: Any = open_ledger(tmp_path, None)
    assert isinstance(ledger, FileLedger)
    assert ledger.read().spec == spec
    assert ledger._lock_wait == LOCK_WAIT_SECONDS


def test_ledger_of_a_cluster_is_named_by_its_location_and_written_for_the_pod(
    api: Callable[[Any], Api], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = api({})
    monkeypatch.setenv(POD_UID, "pod-uid")
    ledger: Any = open_ledger(tmp_path, LOCATION)
    assert isinstance(ledger, KubernetesLedger)
    assert ledger._api is made
    assert (ledger._where["namespace"], ledger._where["name"], ledger._uid) == ("clinic", "triage-ledger", "ledger-uid")
    assert ledger._holder.startswith("pod-uid/")


def test_run_without_a_cluster_is_never_suspended(api: Callable[[Any], Api]) -> None:
    assert not JobObject(None).is_suspended() and JobObject(None).image() is None
    assert not api({"spec": {"suspend": True}}).asked


def test_suspension_is_read_from_the_job_each_time(api: Callable[[Any], Api]) -> None:
    made = api({"spec": {"suspend": True}})
    found = JobObject(LOCATION)
    assert found.is_suspended()
    api({"spec": {"suspend": True}})
    made.answer = {"spec": {"suspend": False}}
    assert not found.is_suspended(), "the same client is used again"
    assert made.asked == [("tensafe.io", "v1alpha1", "clinic", "tensafetrainingjobs", "triage", 5.0)] * 2


@pytest.mark.parametrize("answer", [{}, {"spec": {}}, "no object", None])
def test_job_without_the_field_is_not_suspended(answer: Any, api: Callable[[Any], Api]) -> None:
    api(answer)
    assert JobObject(LOCATION).is_suspended() is False


@pytest.mark.parametrize(
    ("answer", "image"),
    [({"status": {"resolved": {"image": "trainer@sha256:1"}}}, "trainer@sha256:1"), ({"status": {}}, None), ({}, None)],
)
def test_image_is_the_one_that_the_operator_has_resolved(
    answer: Any, image: str | None, api: Callable[[Any], Api]
) -> None:
    api(answer)
    assert JobObject(LOCATION).image() == image


@pytest.mark.parametrize("error", [client.ApiException(status=500), HTTPError("patient"), TimeoutError("patient")])
def test_no_answer_counts_as_not_suspended(
    error: Exception, api: Callable[[Any], Api], caplog: pytest.LogCaptureFixture
) -> None:
    api(error)
    with caplog.at_level(logging.WARNING):
        assert JobObject(LOCATION).is_suspended() is False
    expected = f"the job cannot be read, which shows whether it is suspended ({type(error).__name__})"
    assert caplog.messages == [expected]


@pytest.mark.parametrize("kubeconfig", [None, "/clusters/clinic"])
def test_client_has_the_service_account_or_the_kubeconfig(
    kubeconfig: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(how: str, client_configuration: Any) -> None:
        loaded.append(how)
        client_configuration.host = f"https://{len(loaded)}.example"

    monkeypatch.setattr(config, "load_incluster_config", lambda client_configuration: load("pod", client_configuration))
    monkeypatch.setattr(
        config,
        "load_kube_config",
        lambda config_file, client_configuration: load(config_file, client_configuration),
    )
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if kubeconfig:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
    made = backends._api()
    assert loaded == [kubeconfig or "pod"]
    assert made.api_client.configuration.host == "https://1.example"
