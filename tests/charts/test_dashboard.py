"""The dashboard and the alerts of the chart, on a real Prometheus that scrapes the operator's real metrics endpoint.

No Grafana is started, because its Go module could not be downloaded. The JSON of the dashboard is compared with
Grafana's schema instead, which has a module of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.reasons import Phase
from tensafe_api.tasks import METRICS
from tensafe_api.timestamps import format_time
from tensafe_operator import names
from tensafe_operator.gate import guard_gauge
from tensafe_operator.job_metrics import JobMetrics
from tensafe_operator.runtime.health import Health
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.runtime.namespaces import report_namespaces
from tests.support.lease_store import LeaseStore
from tests.support.polling import wait_until
from tests.support.programs import prometheus
from tests.support.programs.controlplane import free_ports
from tests.support.programs.grafana import schema_errors
from tests.support.programs.helm import CHART
from tests.support.programs.prometheus import Prometheus

FILES = CHART / "files"
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ABOUT_JOBS = "tensafe_job_"
VARIABLES = {"$namespace": ".*", "$job": ".*", "$__rate_interval": "1m"}
OPERATOR_ALERTS = {
    "TenSafeGuardMissing",
    "TenSafeNamespaceNotServed",
    "TenSafeReconcileErrors",
    "TenSafeNoLeader",
}
JOB_ALERTS = {"TenSafeEpsilonAboveTarget", "TenSafeJobFailed", "TenSafeJobStalled"}


def queries() -> list[str]:
    """Every query of the dashboard, with the variables replaced as Grafana does it for `All`."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    for name, text in VARIABLES.items():
        found = [each.replace(name, text) for each in found]
    assert not [each for each in found if "$" in each]
    return found


def alerts(per_job: bool) -> list[dict[str, Any]]:
    """The rules that the chart installs."""
    rules = list(yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"][0]["rules"])
    if per_job:
        return rules
    others = yaml.safe_load((FILES / "alerts-without-job-names.yaml").read_text())["rules"]
    return [*others, *(rule for rule in rules if ABOUT_JOBS not in rule["expr"])]


def job(phase: Phase, *, stalled: bool = False, spent: str = "1.5") -> dict[str, Any]:
    """A job in a phase, with every field that the operator writes in it."""
    now = time.time()

    def condition(kind: str, holds: bool, reason: str) -> dict[str, str]:
        since = format_time(now - 60)
        return {"type": kind, "status": str(holds), "reason": reason, "lastTransitionTime": since}

    attempt: dict[str, Any] = {"number": 1, "startTime": format_time(now - 100), "restarts": 0, "queuedSeconds": 10}
    if phase is Phase.QUEUED:
        attempt["queuedSince"] = format_time(now - 30)
    if phase.final:
        attempt["endTime"] = format_time(now - 5)
    status = {
        "phase": phase.value,
        "ledgerName": "claims-1",
        "conditions": [
            condition("Stalled", stalled, "Unschedulable"),
            condition("Running", phase is Phase.RUNNING, "Training"),
        ],
        "attempts": [attempt],
        "privacy": {"stepsCharged": 40, "stepsPlanned": 100, "epsilonSpent": spent, "targetEpsilon": "8"},
        "progress": {"step": 38, "totalSteps": 100, "lastUpdateTime": format_time(now - 2)},
        "evaluations": [{"step": 30, "loss": "0.6000", **dict.fromkeys(METRICS, "0.7500")}],
        "checkpoints": [{"uri": "s3://m/30", "step": 30, "time": format_time(now - 20)}],
    }
    return {"metadata": {"uid": phase.value}, "status": status}


class Operator:
    """The metrics of an operator, served by its own endpoint on an event loop in a thread.

    Args:
        leads: whether it leads now. Only a leader has series of jobs.
    """

    def __init__(self, *, per_job: bool, leads: bool = True) -> None:
        self.metrics = OperatorMetrics(names.METRICS_PREFIX)
        self.guard = guard_gauge(self.metrics.registry)
        self.jobs = JobMetrics(self.metrics.registry, per_job=per_job)
        (self.port,) = free_ports(1)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        health = Health(self.metrics, LeaseStore().candidate("me"))
        self._runner = self._call(health.serve(self.port)).result()
        if leads:
            self.update(self._begin)

    def update(self, change: Callable[[], None]) -> None:
        """Change the metrics on the event loop, as the operator does."""

        async def run() -> None:
            change()

        self._call(run()).result()

    def stop(self) -> None:
        self._call(self._runner.cleanup()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _begin(self) -> None:
        """A healthy operator with jobs in every phase that needs no user."""
        self.metrics.leading.set(1)
        self.guard.set(1)
        self.metrics.duration.observe(0.02)
        self.metrics.count_request("GET", 200)
        report_namespaces(self.metrics, ["clinic", "lab"], ["clinic", "lab"])
        for phase in Phase:
            if phase is not Phase.FAILED:
                self.jobs.update(("clinic", f"job-{phase.value.lower()}"), job(phase))

    def _call(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def scrape(*operators: Operator) -> dict[str, Any]:
    """The scrape configuration of docs/how-to/monitoring.md."""
    addresses = [f"127.0.0.1:{each.port}" for each in operators]
    return {"job_name": "tensafe", "honor_labels": True, "static_configs": [{"targets": addresses}]}


@pytest.fixture(params=[True, False], ids=["with-job-names", "without-job-names"])
def scraped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Operator, Prometheus, bool]]:
    operator = Operator(per_job=request.param)
    target = scrape(operator)
    rules = {"groups": [{"name": "tensafe", "rules": alerts(request.param)}]}
    try:
        with prometheus.server(tmp_path, [target], rules) as server:
            yield operator, server, request.param
    finally:
        operator.stop()


@pytest.mark.nightly
def test_dashboard_fits_the_schema_of_grafana() -> None:
    assert schema_errors(json.dumps(DASHBOARD)) == ""
    broken = {**DASHBOARD, "panels": [{**PANELS[0], "targets": [{**PANELS[0]["targets"][0], "expression": "up"}]}]}
    assert "unexpected field 'expression'" in schema_errors(json.dumps(broken))


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


@pytest.mark.nightly
def test_every_query_of_the_dashboard_returns_data(scraped: tuple[Operator, Prometheus, bool]) -> None:
    operator, server, per_job = scraped
    operator.update(lambda: operator.jobs.update(("clinic", "blocked"), job(Phase.PENDING, stalled=True)))
    expected = [each for each in queries() if per_job or ABOUT_JOBS not in each]
    assert len(expected) > (25 if per_job else 10)
    for query in expected:
        wait_until(lambda: server.query(query), 60, lambda: f"{query} returns nothing: {server.targets()}")  # noqa: B023
    if not per_job:
        assert not server.query(f'{{__name__=~"{ABOUT_JOBS}.*"}}')
    for variable in DASHBOARD["templating"]["list"][1:]:
        series = re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"]["query"]).replace("$namespace", ".*")
        assert bool(server.query(series)) == (per_job or ABOUT_JOBS not in series)
    (phases,) = [query for query in expected if query.startswith("sum by (phase)")]
    found = {each["metric"]["phase"]: each["value"][1] for each in server.query(phases)}
    assert found == {
        phase.value: "2" if phase is Phase.PENDING else "1" for phase in Phase if phase is not Phase.FAILED
    }


@pytest.mark.nightly
def test_alerts_are_silent_until_something_is_wrong(scraped: tuple[Operator, Prometheus, bool]) -> None:
    operator, server, per_job = scraped
    rules = {rule["alert"]: rule["expr"] for rule in alerts(per_job)}
    assert rules.keys() == OPERATOR_ALERTS | JOB_ALERTS

    def firing() -> set[str]:
        return {name for name, expression in rules.items() if server.query(expression)}

    wait_until(lambda: server.query("tensafe_leading == 1"), 60, lambda: str(server.targets()))
    wait_until(lambda: {rule["health"] for rule in server.rules()} == {"ok"}, 60, lambda: str(server.rules()))
    assert {rule["name"] for rule in server.rules()} == rules.keys()
    assert firing() == set()

    def break_everything() -> None:
        operator.jobs.update(("clinic", "blocked"), job(Phase.PENDING, stalled=True))
        operator.metrics.leading.set(0)
        operator.guard.set(0)
        operator.metrics.errors.inc(20)
        report_namespaces(operator.metrics, ["clinic", "lab"], ["clinic"])
        operator.jobs.update(("clinic", "failed"), job(Phase.FAILED, stalled=True, spent="8.1"))

    operator.update(break_everything)
    wait_until(lambda: firing() == rules.keys(), 60, lambda: f"only {firing()} fire")


@pytest.mark.nightly
@pytest.mark.parametrize("per_job", [True, False], ids=["with-job-names", "without-job-names"])
def test_alerts_about_a_job_are_one_and_stay_when_another_replica_leads(per_job: bool, tmp_path: Path) -> None:
    first, second = Operator(per_job=per_job), Operator(per_job=per_job, leads=False)
    about_jobs = {rule["alert"]: rule["expr"] for rule in alerts(per_job) if rule["alert"] in JOB_ALERTS}

    def tell(operator: Operator) -> None:
        failed = job(Phase.FAILED, stalled=True, spent="8.1")
        operator.update(lambda: operator.jobs.update(("clinic", "failed"), failed))
        operator.update(lambda: operator.jobs.update(("clinic", "blocked"), job(Phase.PENDING, stalled=True)))

    def firing() -> list[tuple[str, dict[str, str]]]:
        return [(name, each["metric"]) for name, query in about_jobs.items() for each in server.query(query)]

    def exported(operator: Operator) -> bool:
        return bool(server.query(f'{{__name__=~"tensafe_jobs?_stalled", instance="127.0.0.1:{operator.port}"}}'))

    try:
        tell(first)
        with prometheus.server(tmp_path, [scrape(first, second)]) as server:
            wait_until(lambda: len(firing()) >= 3, 60, lambda: str(firing()))
            before = firing()
            assert [name for name, _ in before] == sorted(JOB_ALERTS), "a failed job is not stalled as well"
            first.stop()
            wait_until(lambda: not exported(first), 60)
            without = [each for each in firing() if each[0] != "TenSafeEpsilonAboveTarget"]
            assert without == before[1:], "an alert with a delay bridges the time without a leader"
            tell(second)
            wait_until(lambda: exported(second), 60)
            assert firing() == before
    finally:
        second.stop()


def test_dashboard_and_alerts_use_existing_series() -> None:
    """Without a Prometheus: a query of a series that does not exist is valid, and returns nothing."""
    registry = OperatorMetrics(names.METRICS_PREFIX).registry
    guard_gauge(registry)
    JobMetrics(registry)
    known = set(registry._names_to_collectors)
    for query in (*queries(), *(rule["expr"] for per_job in (True, False) for rule in alerts(per_job))):
        used = set(re.findall(r"tensafe_\w+", query))
        assert used and used <= known, query
