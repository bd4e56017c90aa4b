"""No smaller ε is written, and nothing is begun, where the CRDs have become older since the operator last read them."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster, running_job, started_job
from e2e.platform.fixtures.rule_examples import EARLIER_STEPS
from tensafe_api import fixes
from tensafe_api.reasons import Reason
from tensafe_operator import names, reconcile
from tensafe_operator.plan.observed import Observed
from tensafe_operator.reconcile import BEGIN_SECONDS, DROPPED_SECONDS, RETRY_SECONDS, SHORTENED_SECONDS, Reconciler
from tensafe_operator.runtime.api_errors import INVALID, UnknownFields
from tensafe_operator.served_fields import FieldsDropped, lost_field

STARTED_FROM = {"spec__lora": {"initFrom": {"uri": "s3://models/final", "earlierSteps": EARLIER_STEPS}}}


class Api:
    """Accepts every write, and has read the CRDs `age` seconds before they were replaced by older ones."""

    def __init__(self, age: float) -> None:
        self.age = age
        self.created: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []

    async def guarded(self, *, within: float | None = None) -> bool:
        if within is not None and self.age >= within:
            raise FieldsDropped("the CRDs drop privacyledgers.spec.mechanism.earlierSteps")
        return True

    async def create(self, manifest: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
        self.created.append(manifest)
        return {**manifest, "status": {"attempt": 1}}  # of a ledger: it was acquired, so this reconcile ends

    async def replace_status(
        self, job: dict[str, Any], status: dict[str, Any], *, without_managers: bool
    ) -> dict[str, Any]:
        self.statuses.append(status)
        return {**job, "status": status}

    def reconcile(self, cluster: FakeCluster) -> float | None:
        reconciler = Reconciler(self, SETTINGS, lambda: cluster.now, guarded=self.guarded)  # type: ignore[arg-type]
        observed = copy.deepcopy(cluster.observe())
        observed.job["metadata"]["resourceVersion"] = "1"
        return asyncio.run(reconciler.reconcile("clinic", "claims-triage", observed))


def charged_job() -> FakeCluster:
    """A job that starts from another adapter, with a status of nine charged steps."""
    cluster, operator = started_job(**STARTED_FROM)
    cluster.charge(9)
    operator.settle()
    assert cluster.ledger is not None and cluster.ledger["spec"]["mechanism"]["earlierSteps"]
    return cluster


def shorten(cluster: FakeCluster) -> None:
    """Return the ledger from now on as the API server does under older CRDs."""
    ledger = copy.deepcopy(cluster.ledger)
    assert ledger is not None
    del ledger["spec"]["mechanism"]["earlierSteps"]
    cluster.ledger = ledger


def serve(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster) -> None:
    """Let the API server return the present state of this cluster."""
    served = copy.deepcopy(cluster.observe())
    served.job["metadata"]["resourceVersion"] = "1"

    async def observe(*_: Any) -> Observed:
        return served

    monkeypatch.setattr(reconcile, "observe", observe)


def test_figure_that_falls_is_written_only_after_the_crds_were_read_again() -> None:
    cluster = charged_job()
    shorten(cluster)
    del cluster.job["spec"]["lora"]["initFrom"]
    api = Api(age=0.0)
    assert api.reconcile(cluster) == cluster.now + DROPPED_SECONDS
    assert api.statuses == [], "no status is written, which would store the job without the field, too"
    (event,) = api.created
    assert (event["kind"], event["type"], event["reason"]) == ("Event", "Warning", "GuardMissing")
    assert event["message"].startswith(f"{names.STATUS_REFUSED}: the CRDs drop privacyledgers.spec.mechanism.")


def test_ledger_that_was_cached_under_older_crds_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch brings no event when the CRDs are back."""
    cluster = charged_job()
    serve(monkeypatch, cluster)
    shorten(cluster)
    api = Api(age=-1.0)
    api.reconcile(cluster)
    assert api.statuses == [] and api.created == []


def message_without_a_status(cluster: FakeCluster) -> str:
    """The message of the Event with which a reconcile ends that writes no status and creates nothing else, for good."""
    api = Api(age=-1.0)
    assert api.reconcile(cluster) == cluster.now + SHORTENED_SECONDS
    assert api.statuses == []
    (event,) = api.created
    assert event["message"].endswith(fixes.LEDGER_SHORTENED)
    return str(event["message"])


@pytest.mark.parametrize("of", ["ledger", "ledger and job", "ledger without a digest"])
def test_ledger_that_was_stored_under_older_crds_is_never_counted(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = charged_job()
    cluster.charge(20)
    shorten(cluster)
    if of == "ledger and job":
        del cluster.job["spec"]["lora"]["initFrom"]
    if of == "ledger without a digest":
        assert cluster.ledger is not None
        del cluster.ledger["metadata"]["annotations"]
    serve(monkeypatch, cluster)
    assert "has lost fields of its spec" in message_without_a_status(cluster)


def training_job() -> tuple[FakeCluster, dict[str, Any]]:
    """A job that trains, and a copy of its ledger with a status."""
    cluster, operator = running_job()
    cluster.charge(9)
    operator.settle()
    assert cluster.status["privacy"]["stepsCharged"] > 0 and cluster.ledger is not None
    return cluster, copy.deepcopy(cluster.ledger)


@pytest.mark.parametrize("what", ["charges", "status"])
def test_ledger_that_has_lost_its_charges_is_never_counted(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt would charge from nothing, and later the status would have too small an ε."""
    cluster, ledger = training_job()
    del (ledger if what == "status" else ledger["status"])[what]
    cluster.ledger = ledger
    serve(monkeypatch, cluster)
    assert "has lost fields of its spec or its charges" in message_without_a_status(cluster)


def test_ledger_that_was_cached_without_its_charges_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, ledger = training_job()
    cluster.charge(3)
    serve(monkeypatch, cluster)
    before = cluster.status["privacy"]["stepsCharged"]
    del ledger["status"]["charges"]
    cluster.ledger = ledger
    api = Api(age=-1.0)
    api.reconcile(cluster)
    (status,) = api.statuses
    assert status["privacy"]["stepsCharged"] == before + 3
    assert not [each for each in api.created if each["reason"] == "GuardMissing"]


class RefusingApi(Api):
    """Its CRDs lack a field of the job, and the guard has not seen that yet."""

    async def replace_status(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise UnknownFields(INVALID, "spec.lora.initFrom")


def test_status_that_would_delete_fields_of_the_job_is_reported_and_not_written() -> None:
    cluster = charged_job()
    cluster.start_pods()
    api = RefusingApi(age=-1.0)
    assert api.reconcile(cluster) == cluster.now + DROPPED_SECONDS
    (event,) = api.created
    assert "older than the operator, and drop spec.lora.initFrom: " in event["message"]
    assert event["message"].endswith(Reason.GUARD_MISSING.fix)


def test_no_attempt_ends_by_a_job_that_was_read_without_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard's answer may be two seconds old. The status would be written with what is left of the job."""
    cluster = charged_job()
    cluster.delete_ray_job("claims-triage-a1", cluster.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    whole = copy.deepcopy(cluster.job)
    del cluster.job["spec"]["lora"]["initFrom"]
    serve(monkeypatch, cluster)
    cluster.job = whole
    api = Api(age=-1.0)
    assert api.reconcile(cluster) == cluster.now + DROPPED_SECONDS
    assert api.statuses == []
    (event,) = api.created
    assert "older than the operator, and drop spec.lora.initFrom: " in event["message"]


@pytest.mark.parametrize("are_older", [True, False], ids=["under older CRDs", "a moment before"])
def test_ledger_that_was_only_read_without_its_fields_is_not_called_shortened(
    are_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice for a shortened ledger is to delete the job."""
    cluster = charged_job()
    cluster.delete_ray_job("claims-triage-a1", cluster.ray_jobs["claims-triage-a1"]["metadata"]["uid"])
    whole = cluster.ledger
    shorten(cluster)
    serve(monkeypatch, cluster)
    cluster.ledger = whole
    api = Api(age=1.0 if are_older else -1.0)
    assert api.reconcile(cluster) == cluster.now + (DROPPED_SECONDS if are_older else RETRY_SECONDS)
    assert api.statuses == []
    messages = [event["message"] for event in api.created]
    assert ["the CRDs drop" in message for message in messages] == [True] * are_older


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}, ""),
        ({"a": {"b": 1}}, {"a": {}}, "spec.a.b"),
        ({"a": [{"b": None}]}, {"a": [{}]}, "spec.a[0].b"),
        ({"a": {"b": 1}}, {}, "spec.a"),
    ],
)
def test_field_that_is_lost_is_found_at_any_depth(before: Any, after: Any, lost: str) -> None:
    assert lost_field(before, after, "spec") == lost


class DroppingApi(Api):
    """Drops the earlier steps of a new ledger: its CRDs were replaced after they had been read."""

    async def create(self, manifest: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
        created = copy.deepcopy(await super().create(manifest, strict=strict))
        created.pop("status")
        if manifest["kind"] == "PrivacyLedger":
            del created["spec"]["mechanism"]["earlierSteps"]
        return created

    async def knows(self, kind: str) -> bool:
        return True


def test_new_ledger_without_its_fields_starts_no_job() -> None:
    cluster = FakeCluster.with_job(**STARTED_FROM)
    api = DroppingApi(age=-1.0)
    assert api.reconcile(cluster) == cluster.now + SHORTENED_SECONDS
    assert "PrivacyLedger" in [each["kind"] for each in api.created]
    assert "RayJob" not in [each["kind"] for each in api.created] and api.statuses == []


def test_loss_is_reported_although_older_crds_were_reported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has not changed since, so both Events would have one name, and the API server keeps the first."""
    cluster = charged_job()
    shorten(cluster)
    serve(monkeypatch, cluster)
    under_older, afterwards = Api(age=0.0), Api(age=-1.0)
    under_older.reconcile(cluster)
    afterwards.reconcile(cluster)
    (first,), (second,) = under_older.created, afterwards.created
    assert "the CRDs drop" in first["message"] and "has lost fields" in second["message"]
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_failed_reconcile_counts_no_shortened_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = charged_job()
    before = cluster.status["privacy"]
    shorten(cluster)

    async def fail(*_: Any) -> Observed:
        raise RuntimeError("a bug")

    monkeypatch.setattr(reconcile, "observe", fail)
    api = Api(age=-1.0)
    with pytest.raises(RuntimeError):
        api.reconcile(cluster)
    assert api.statuses[0]["privacy"] == before


def test_figure_that_falls_for_another_reason_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a release whose accounting is tighter."""
    cluster = charged_job()
    spent = cluster.status["privacy"]["epsilonSpent"]
    cluster.job["status"]["privacy"]["epsilonSpent"] = "99"
    serve(monkeypatch, cluster)
    api = Api(age=-1.0)
    api.reconcile(cluster)
    assert api.statuses[0]["privacy"]["epsilonSpent"] == spent


def test_figure_that_falls_for_another_reason_waits_for_the_crds(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = charged_job()
    cluster.job["status"]["privacy"]["epsilonSpent"] = "99"
    serve(monkeypatch, cluster)
    api = Api(age=0.0)
    assert api.reconcile(cluster) == cluster.now + DROPPED_SECONDS
    assert api.statuses == []


@pytest.mark.parametrize(("age", "begins"), [(BEGIN_SECONDS - 1, True), (BEGIN_SECONDS, False)])
def test_ledger_is_opened_only_soon_after_the_crds_were_read(age: float, begins: bool) -> None:
    """A job that is applied under older CRDs lacks the adapter from which it was to start."""
    api = Api(age)
    api.reconcile(FakeCluster.with_job())
    assert ("PrivacyLedger" in [each["kind"] for each in api.created]) is begins
