"""No smaller ε is written, and nothing is begun, where the CRDs have become older since the operator last read them."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster, started_job
from e2e.platform.fixtures.rule_examples import EARLIER_STEPS
from tensafe_operator import names
from tensafe_operator.ledger_guard import FieldsDropped
from tensafe_operator.reconcile import BEGIN_SECONDS, DROPPED_SECONDS, Reconciler

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


def test_figure_that_falls_is_written_only_after_the_crds_were_read_again() -> None:
    cluster, operator = started_job(**STARTED_FROM)
    cluster.charge(9)
    operator.settle()
    spent = cluster.status["privacy"]["epsilonSpent"]
    assert cluster.ledger is not None
    del cluster.ledger["spec"]["mechanism"]["earlierSteps"]

    api = Api(age=0.0)
    assert api.reconcile(cluster) == cluster.now + DROPPED_SECONDS
    assert api.statuses == [], "no status is written, which would store the job without the field, too"
    (event,) = api.created
    assert (event["kind"], event["type"], event["reason"]) == ("Event", "Warning", "GuardMissing")
    assert event["message"].startswith(f"{names.STATUS_REFUSED}: the CRDs drop privacyledgers.spec.mechanism.")

    class Tighter(Api):
        async def guarded(self, *, within: float | None = None) -> bool:
            return True

    later = Tighter(age=0.0)  # such as a release whose accounting is tighter
    later.reconcile(cluster)
    assert float(later.statuses[0]["privacy"]["epsilonSpent"]) < float(spent)


@pytest.mark.parametrize(("age", "begins"), [(BEGIN_SECONDS - 1, True), (BEGIN_SECONDS, False)])
def test_ledger_is_opened_only_soon_after_the_crds_were_read(age: float, begins: bool) -> None:
    """A job that is applied under older CRDs lacks the adapter from which it was to start."""
    api = Api(age)
    api.reconcile(FakeCluster.with_job())
    assert ("PrivacyLedger" in [each["kind"] for each in api.created]) is begins
