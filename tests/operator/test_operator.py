"""The operator as a process with a real API server: it leads, reconciles and is killed, and another one continues."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_operator.leading import FIRST_RESYNC_SECONDS
from tests.support.fakes.kuberay import install_kuberay_crds
from tests.support.manifests import MINIMAL, changed
from tests.support.operator_harness import FreezableProxy, OperatorHarness
from tests.support.operator_process import OperatorProcess
from tests.support.polling import TIMEOUT_SECONDS
from tests.support.rejected_manifests import REJECTED_BY_ACCOUNTING
from tests.support.roles import install_roles

pytestmark = pytest.mark.cluster

FAILOVER_SECONDS, HANDOVER_SECONDS, RECONNECT_SECONDS = 20, 8, 20
REPORT_SECONDS = 10
LONG_LEASE = {"TENSAFE_LEASE_SECONDS": "90", "TENSAFE_RENEW_SECONDS": "60"}
"""Keeps the Lease although a busy machine pauses the process for some seconds."""


def test_second_operator_takes_over_when_the_leader_is_killed(plane: OperatorHarness) -> None:
    both = [plane.operator(), plane.operator()]
    plane.apply("one")
    plane.wait_until(lambda: plane.started("one"))
    shown = 'tensafe_job_phase{job="one",namespace="clinic",phase="Starting"} 1.0'
    plane.wait_until(lambda: any(shown in each.metrics() for each in both))
    plane.wait_until(lambda: sorted(each.leading for each in both) == [False, True])
    second, first = sorted(both, key=lambda each: each.leading)

    before = plane.get("TenSafeTrainingJob", "one")
    first.kill()
    plane.wait_until(lambda: second.leading, FAILOVER_SECONDS)
    plane.apply("two")
    plane.wait_until(lambda: plane.started("two"))
    assert plane.get("TenSafeTrainingJob", "one") == before, "a new leader writes nothing that is already up to date"

    # SIGTERM gives the Lease up, so the next operator need not wait until it expires.
    third = plane.operator()
    plane.wait_until(third.metrics)
    assert second.terminate() == 0, plane.logs()
    plane.wait_until(lambda: third.leading, HANDOVER_SECONDS)
    third.restart_if_lease_lost()
    assert plane.refused() == []
    about = ("get", "events", "--field-selector=involvedObject.kind=TenSafeTrainingJob,involvedObject.name=one")
    events = json.loads(plane.plane.kubectl("-n", "clinic", *about, "-o", "json").stdout)["items"]
    assert [each["reason"] for each in events].count("AttemptStarted") == 1, "recorded once, not by each leader"
    lines = [json.loads(each) for each in plane.logs().splitlines() if "AttemptStarted" in each]
    assert sorted((line["namespace"], line["job"], line["attempt"]) for line in lines) == [
        ("clinic", "one", 1),
        ("clinic", "two", 1),
    ]


NOISE = """
import asyncio, logging
import tensafe_operator.runtime.watch as module

real_watch, left_open = module.watch, []

async def unclosed_generator():
    try:
        yield
    finally:
        raise RuntimeError("closed in the wrong order")

async def watch(*arguments):
    left_open.append(unclosed_generator())
    await anext(left_open[0])
    try:
        await real_watch(*arguments)
    finally:
        logging.getLogger("kopf.reactor").warning("not executed due to cancellation")

module.watch = watch
"""
"""Makes kopf's tasks and generators always log what they sometimes log when they are cancelled."""


def test_requested_shutdown_logs_no_warning_and_gives_the_lease_up(plane: OperatorHarness) -> None:
    operator = plane.operator(before=NOISE)
    plane.wait_until(lambda: operator.leading)
    for number in range(5):
        plane.apply(f"job-{number}")
    plane.wait_until(lambda: plane.started("job-0"))
    before = len(plane.logs())
    assert operator.terminate() == 0, plane.logs()
    lines = [json.loads(line) for line in plane.logs()[before:].splitlines()]
    assert [line for line in lines if line["level"] != "INFO"] == []
    assert plane.lease()[0] == ""


LATE_STREAMS = """
import asyncio, os
import tensafe_operator.runtime.watch as module

real_watch = module.watch

async def watch(*arguments):
    while not os.path.exists(os.environ["STREAMS_MAY_START"]):
        await asyncio.sleep(0.1)
    await real_watch(*arguments)

module.watch = watch
"""
"""Lets something happen between the first list and those of the streams."""


def test_deletion_that_no_stream_reports_is_noticed_soon(plane: OperatorHarness, tmp_path: Path) -> None:
    """A RayJob was deleted while an upgraded operator started, and its job said for five minutes that it ran."""
    first = plane.operator()
    plane.apply("one")
    plane.wait_until(lambda: plane.started("one"))
    assert first.terminate() == 0
    go = tmp_path / "go"
    second = plane.operator(before=LATE_STREAMS, STREAMS_MAY_START=str(go))
    plane.wait_until(lambda: 'job="one"' in second.metrics())
    plane.plane.kubectl("-n", "clinic", "delete", "rayjob", "one-a1")
    go.touch()
    plane.wait_until(lambda: "endTime" in attempts(plane, "one")[0], 2 * FIRST_RESYNC_SECONDS)


def attempts(plane: OperatorHarness, job: str) -> list[dict[str, Any]]:
    return list(((plane.get("TenSafeTrainingJob", job) or {}).get("status") or {}).get("attempts") or ())


def test_deleted_network_policy_is_made_again_while_the_operator_watches(plane: OperatorHarness) -> None:
    plane.operator()
    plane.apply("one")
    plane.wait_until(lambda: plane.started("one"))
    before = plane.get("NetworkPolicy", "one")
    assert before is not None
    plane.plane.kubectl("-n", "clinic", "delete", "networkpolicy", "one")
    plane.wait_until(lambda: plane.get("NetworkPolicy", "one"), REPORT_SECONDS)
    assert (plane.get("NetworkPolicy", "one") or {})["spec"] == before["spec"]
    assert plane.refused() == []


def test_operator_ends_when_a_frozen_api_server_costs_it_the_lease(plane: OperatorHarness) -> None:
    """Another operator may be the leader by then, so the process must not act."""
    operator = plane.operator()
    plane.wait_until(lambda: operator.leading)
    plane.plane.kill("apiserver", signal.SIGSTOP)
    assert operator.wait_for_exit() == 1 and operator.lease_lost
    plane.plane.kill("apiserver", signal.SIGCONT)
    plane.apply("after")
    plane.operator()
    plane.wait_until(lambda: plane.started("after"))


@pytest.mark.parametrize("namespaces", [[], ["clinic"]], ids=["all namespaces", "one namespace"])
def test_crds_installed_after_the_operator_are_noticed(unstarted: OperatorHarness, namespaces: list[str]) -> None:
    unstarted.start(kinds=False, **({"namespaces": namespaces} if namespaces else {}))
    operator = unstarted.operator()
    unstarted.wait_until(lambda: operator.leading)
    unstarted.install_our_crds()
    unstarted.apply("early")
    unstarted.apply("elsewhere", "lab")
    unstarted.wait_until(lambda: "KubeRayMissing" in json.dumps(unstarted.get("TenSafeTrainingJob", "early")))
    install_kuberay_crds(unstarted.plane)
    unstarted.wait_until(lambda: unstarted.started("early"))
    patch = json.dumps({"status": {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed"}})
    command = ("patch", "rayjob", "early-a1", "--subresource=status", "--type=merge", "-p", patch)
    unstarted.plane.kubectl("-n", "clinic", *command)
    unstarted.wait_until(lambda: "WorkerLost" in json.dumps(unstarted.get("TenSafeTrainingJob", "early")))
    in_lab = unstarted.plane.kubectl("-n", "lab", "get", "rayjob", "-o", "name").stdout
    assert bool(in_lab) == (not namespaces)
    operator.restart_if_lease_lost()
    assert unstarted.refused() == []


def test_jobs_start_again_when_kuberay_was_removed_with_its_crds_and_is_back(plane: OperatorHarness) -> None:
    operator = plane.operator(**LONG_LEASE)
    plane.apply("early")
    plane.wait_until(lambda: plane.started("early"))
    plane.plane.kubectl("delete", "crd", "rayjobs.ray.io")
    assert operator.wait_for_exit() == 1, "kopf's stream of RayJobs has ended; the kubelet restarts the pod"
    assert plane.lease()[0] == "", "the Lease was given up, so that the next process leads at once"
    plane.operator()
    plane.wait_until(lambda: "KubeRayMissing" in json.dumps(plane.get("TenSafeTrainingJob", "early")))
    install_kuberay_crds(plane.plane)
    plane.wait_until(lambda: plane.started("early", attempt=2))
    assert plane.ray_jobs() == ["early-a2"]


def test_job_starts_by_itself_once_its_profile_exists(unstarted: OperatorHarness) -> None:
    unstarted.start(namespaces=["clinic"])
    unstarted.operator()
    unstarted.apply("early", changes={"spec.cluster.profileRef": "gpu-a"})
    unstarted.wait_until(lambda: "ProfileMissing" in json.dumps(unstarted.get("TenSafeTrainingJob", "early")))
    spec = {"image": "site:1", "rayVersion": "2.60.0"}
    profile = {"apiVersion": "tensafe.io/v1alpha1", "kind": "TenSafeClusterProfile", "metadata": {"name": "gpu-a"}}
    unstarted.plane.kubectl("apply", "-f", "-", text=json.dumps({**profile, "spec": spec}))
    unstarted.wait_until(lambda: unstarted.started("early"))
    assert '"image": "site:1"' in json.dumps(unstarted.get("RayJob", "early-a1"))
    assert unstarted.refused() == []


def test_restarted_api_server_finds_all_objects_unchanged(plane: OperatorHarness) -> None:
    operator = plane.operator()
    plane.wait_until(lambda: operator.leading)
    plane.apply("before")
    plane.wait_until(lambda: plane.started("before"))
    plane.wait_until(lambda: 'phase="Starting"' in operator.metrics())
    before = plane.get("TenSafeTrainingJob", "before")
    plane.plane.kill("apiserver")
    assert operator.wait_for_exit() == 1, "without a Lease it must not act; the kubelet restarts its pod"
    plane.plane.start_api_server()
    plane.operator()
    plane.apply("after")
    plane.wait_until(lambda: plane.started("after"))
    assert plane.get("TenSafeTrainingJob", "before") == before
    assert plane.ray_jobs() == ["after-a1", "before-a1"]


def test_silently_frozen_streams_are_opened_again(plane: OperatorHarness) -> None:
    """A load balancer can drop a connection without closing it. New connections work."""
    with FreezableProxy(plane.plane.url) as proxy:
        kubeconfig = plane.kubeconfig_through(proxy)
        short_timeout = "import tensafe_operator.runtime.watch as watch; watch.INACTIVITY_SECONDS = 5.0"
        operator = plane.operator(kubeconfig, before=short_timeout, **LONG_LEASE)
        plane.wait_until(lambda: operator.leading)
        plane.apply("before")
        plane.wait_until(lambda: plane.started("before"))
        proxy.freeze()
        lease = plane.lease()
        plane.wait_until(lambda: plane.lease() != lease, RECONNECT_SECONDS)
        plane.apply("after")
        plane.wait_until(lambda: plane.started("after"))
        assert plane.lease()[0] == lease[0], "the process that missed the events has found the job, not a restarted one"


def test_pods_of_a_jobs_account_have_the_pull_secrets_of_the_chart(plane: OperatorHarness) -> None:
    plane.operator(**LONG_LEASE, TENSAFE_PULL_SECRETS="mirror,other")
    plane.apply("one", changes={"spec.cluster.serviceAccountName": ""})
    plane.wait_until(lambda: plane.started("one"))
    ledger = (plane.get("TenSafeTrainingJob", "one") or {})["status"]["ledgerName"]
    account = (plane.get("PrivacyLedger", ledger) or {})["spec"]["serviceAccountName"]
    assert account == "tensafe-trainer"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker"},
        "spec": {"serviceAccountName": account, "containers": [{"name": "ray", "image": "localhost/none"}]},
    }
    arguments = ("-n", "clinic", "create", "--dry-run=server", "-o", "json", "-f", "-")
    created = json.loads(plane.plane.kubectl(*arguments, text=json.dumps(pod)).stdout)
    assert created["spec"]["imagePullSecrets"] == [{"name": "mirror"}, {"name": "other"}]


@pytest.mark.parametrize(
    ("namespaces", "found"), [("nowhere,gone", "is nowhere,gone"), ("", "is not set (all namespaces)")]
)
def test_missing_right_to_list_a_namespace_is_reported_with_its_setting(
    unstarted: OperatorHarness, namespaces: str, found: str
) -> None:
    unstarted.start(namespaces=["clinic"])
    assert unstarted.operator(TENSAFE_NAMESPACES=namespaces).wait_for_exit(TIMEOUT_SECONDS) == 1
    assert f"TENSAFE_NAMESPACES {found}, but the operator may not list all objects there" in unstarted.logs()
    assert "Traceback" not in unstarted.logs()


def test_deleted_namespace_is_skipped_and_taken_up_when_it_is_back(unstarted: OperatorHarness) -> None:
    unstarted.start(namespaces=["clinic", "lab"])
    fast = "import tensafe_operator.runtime.namespaces as module; module.POLL_SECONDS = 0.5"
    operator, kubectl = unstarted.operator(before=fast, **LONG_LEASE), unstarted.plane.kubectl
    unstarted.wait_until(lambda: served(operator.metrics()) == {"clinic": True, "lab": True})
    kubectl("delete", "namespace", "lab")
    unstarted.wait_until(lambda: served(operator.metrics()) == {"clinic": True, "lab": False})
    unstarted.apply("meanwhile")
    unstarted.wait_until(lambda: unstarted.started("meanwhile"))
    assert "namespace lab is skipped" in unstarted.logs()

    kubectl("create", "namespace", "lab")
    install_roles(unstarted.plane, namespaces=["clinic", "lab"])  # as `helm upgrade` does
    unstarted.wait_until(lambda: served(operator.metrics()) == {"clinic": True, "lab": True})
    unstarted.apply("back", "lab")
    unstarted.wait_until(lambda: kubectl("-n", "lab", "get", "rayjob", "-o", "name").stdout.strip())
    assert "Traceback" not in unstarted.logs()


def served(metrics: str) -> dict[str, bool]:
    """Which namespaces of its list the operator serves, according to its metrics."""
    found = re.findall(r'tensafe_namespace_served{namespace="(\w+)"} (\S+)', metrics)
    return {name: value == "1.0" for name, value in found}


OUTAGE_SECONDS = 60.0


def test_operator_restarted_during_a_network_outage_finds_the_changes_it_missed(plane: OperatorHarness) -> None:
    with FreezableProxy(plane.plane.url) as proxy:
        kubeconfig = plane.kubeconfig_through(proxy)
        operator = plane.operator(kubeconfig)
        plane.wait_until(lambda: operator.leading)
        plane.apply("before")
        plane.wait_until(lambda: plane.started("before"))
        proxy.refuse_new = True
        proxy.freeze()
        since = time.monotonic()
        assert operator.wait_for_exit() == 1, "without a Lease it must not act; the kubelet restarts its pod"
        operator = plane.operator(kubeconfig)
        plane.apply("meanwhile")
        plane.plane.kubectl("-n", "clinic", "delete", "rayjob", "before-a1")
        plane.wait_until(lambda: time.monotonic() > since + OUTAGE_SECONDS)
        assert "tensafe_leading 0.0" in operator.metrics() and not plane.started("meanwhile")
        proxy.refuse_new = False
        plane.wait_until(lambda: plane.started("meanwhile"))
        plane.wait_until(lambda: plane.started("before", attempt=2))
        assert plane.ray_jobs() == ["before-a2", "meanwhile-a1"]
        operator.restart_if_lease_lost()


def test_two_operators_by_mistake_create_everything_once(plane: OperatorHarness) -> None:
    """Two installations of the chart in two namespaces have two Leases, so both lead."""
    other = install_roles(plane.plane, "tensafe-other", **{"rbac.trainerRole": False})
    both = plane.operator(), plane.operator(other, TENSAFE_OWN_NAMESPACE="tensafe-other")
    plane.wait_until(lambda: all(each.leading for each in both))
    names = [f"job-{number}" for number in range(8)]
    for name in names:
        plane.apply(name)
    plane.wait_until(lambda: all(plane.started(name) for name in names))
    starting = {f'tensafe_job_phase{{job="{name}",namespace="clinic",phase="Starting"}} 1.0' for name in names}

    def phases(operator: OperatorProcess) -> set[str]:
        return {line for line in operator.metrics().splitlines() if line.startswith("tensafe_job_phase{")}

    plane.wait_until(lambda: all(phases(each) == starting for each in both))
    before = {name: plane.get("TenSafeTrainingJob", name) for name in names}
    assert plane.ray_jobs() == [f"{name}-a1" for name in names]
    ledgers = plane.plane.kubectl("-n", "clinic", "get", "pledger", "-o", "name").stdout.split()
    assert len(ledgers) == len(names)
    plane.apply("last")
    plane.wait_until(lambda: plane.started("last"))
    after = {name: plane.get("TenSafeTrainingJob", name) for name in names}
    assert after == before, "they do not overwrite each other for ever"


def test_job_that_cannot_run_is_reported_within_ten_seconds(plane: OperatorHarness) -> None:
    operator = plane.operator(**LONG_LEASE)
    plane.wait_until(lambda: operator.leading)
    wrong = [
        *REJECTED_BY_ACCOUNTING,
        ({"spec.cluster.wokers": 3}, "spec.cluster.wokers: unknown field: did you mean workers?"),
    ]
    for number, (changes, _) in enumerate(wrong):
        apply_unchecked(plane, f"wrong-{number}", changes)
    for number, (_, message) in enumerate(wrong):
        name = f"wrong-{number}"
        plane.wait_until(lambda name=name: condition(plane, name, "Stalled").get("status") == "True", REPORT_SECONDS)
        accepted, stalled = condition(plane, name, "Accepted"), condition(plane, name, "Stalled")
        assert (accepted["status"], stalled["status"]) == ("False", "True")
        assert stalled["reason"] in ("InvalidManifest", "UnknownField")
        assert message in stalled["message"]
    assert plane.ray_jobs() == []
    assert plane.plane.kubectl("-n", "clinic", "get", "pledger", "-o", "name").stdout == ""
    apply_unchecked(plane, f"wrong-{len(REJECTED_BY_ACCOUNTING)}", {"spec.suspend": False})  # without the unknown field
    plane.wait_until(lambda: plane.started(f"wrong-{len(REJECTED_BY_ACCOUNTING)}"))


def apply_unchecked(plane: OperatorHarness, name: str, changes: dict[str, Any]) -> None:
    """Apply a job as Argo CD does: the API server drops a field that the schema does not know, without an error."""
    job = changed(MINIMAL, {"metadata.name": name, "metadata.namespace": "clinic", **changes})
    plane.plane.kubectl("apply", "--validate=ignore", "-f", "-", text=json.dumps(job))


def condition(plane: OperatorHarness, name: str, kind: str) -> dict[str, Any]:
    """A condition of a job; empty if it has none of this type."""
    found = ((plane.get("TenSafeTrainingJob", name) or {}).get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), {})


def test_plugin_of_a_kubeconfig_gives_the_credentials_of_requests_and_streams(plane: OperatorHarness) -> None:
    """Cloud providers and OIDC log in this way."""
    document = yaml.safe_load(plane.kubeconfig.read_text())
    version, user = "client.authentication.k8s.io/v1", document["users"][0]["user"]
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": user["token"]}}
    login = {"apiVersion": version, "command": "echo", "args": [json.dumps(credential)], "interactiveMode": "Never"}
    document["users"][0]["user"] = {"exec": login}
    path = plane.folder / "plugin.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    plane.operator(kubeconfig=path)
    plane.apply("one")
    plane.wait_until(lambda: plane.started("one"))
    plane.apply("two")  # comes by a stream
    plane.wait_until(lambda: plane.started("two"))
