"""`kubectl tensafe run` and `status --watch`: they follow a job to its end, and never stop it.

The plugin runs as a process of its own where signals or the end of a connection matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Attempt, Progress
from tensafe_kubectl.api import Api, Object
from tests.support.manifests import MINIMAL
from tests.support.operator_harness import FreezableProxy
from tests.support.plugin_team import NAME, Plugin, Start, Team, running, status_of

pytestmark = pytest.mark.cluster
SUCCEEDED = status_of(Phase.SUCCEEDED, Reason.COMPLETED, progress=Progress(step=20, total_steps=20))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    return path


def test_run_applies_the_manifest_and_ends_with_the_job(team: Team, start: Start, manifest: Path) -> None:
    run = start("run", str(manifest), "--set", "spec.training.steps=20")
    run.wait_for("New: No operator has written a status yet")
    assert team.job()["spec"]["training"]["steps"] == 20
    team.write_status(status_of(Phase.STARTING, Reason.SECRET_MISSING, "secret s3-keys not found", stalled=True))
    run.wait_for("Starting, blocked (SecretMissing): secret s3-keys not found")
    team.write_status(running(5))
    run.wait_for("5 of 20 steps (25 %)")
    team.write_status(SUCCEEDED)
    code, printed = run.end()
    assert code == 0
    assert f"applied {NAME} in the namespace {team.namespace}" in printed
    assert "Succeeded: All planned steps are done." in printed and "20 of 20 steps (100 %)" in printed


def test_ctrl_c_leaves_the_job_running_and_names_the_command_to_follow_it(
    team: Team, start: Start, plugin: Plugin, manifest: Path
) -> None:
    run = start("run", str(manifest))
    run.wait_for("New")
    team.write_status(running(5))
    run.wait_for("Running")
    run.press_ctrl_c()
    code, printed = run.end()
    assert code == 130
    assert f"the job {NAME} continues in the cluster" in printed
    again = f"kubectl tensafe status {NAME} -n {team.namespace} --kubeconfig {team.plane.admin} --watch"
    assert again in printed and "Traceback" not in printed
    job = team.job()
    assert job["status"]["phase"] == "Running" and not job["spec"].get("suspend")
    assert "deletionTimestamp" not in job["metadata"]
    follower = start("status", NAME, "--watch")
    follower.wait_for("5 of 20 steps")
    team.write_status(SUCCEEDED)
    assert follower.end()[0] == 0


def test_watch_that_is_cut_is_opened_again(team: Team, start: Start, tmp_path: Path) -> None:
    team.create_job(status=running(1))
    with FreezableProxy(team.plane.url) as proxy:
        through = tmp_path / "through.kubeconfig"
        through.write_text(team.plane.admin.read_text().replace(team.plane.url, proxy.url))
        follower = start("status", NAME, "--watch", kubeconfig=through)
        follower.wait_for("1 of 20 steps")
        proxy.refuse_new = True
        proxy.cut()
        follower.wait_for("the connection to the API server broke")
        team.write_status(running(15))
        proxy.refuse_new = False
        follower.wait_for("15 of 20 steps")
        team.write_status(SUCCEEDED)
        code, printed = follower.end()
    assert code == 0 and printed.count("the connection to the API server broke") == 1


def test_watch_continues_after_the_server_has_ended_it(
    team: Team, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends each watch in its time, here after one second. The job ends during the third one."""
    monkeypatch.setattr("tensafe_kubectl.api.WATCH_SECONDS", 1)
    team.create_job(status=running(1))
    watch, opened = Api.watch, []

    def counted(*arguments: Any) -> Iterator[tuple[str, Object]]:
        opened.append(arguments)
        if len(opened) == 3:
            team.write_status(SUCCEEDED)
        return watch(*arguments)

    monkeypatch.setattr(Api, "watch", counted)
    followed = plugin("status", NAME, "--watch")
    assert followed.code == 0 and "broke" not in followed.err and len(opened) == 3


@pytest.mark.parametrize(
    ("phase", "reason", "code"),
    [
        (Phase.SUCCEEDED, Reason.COMPLETED, 0),
        (Phase.FAILED, Reason.NO_PROGRESS, 1),
        (Phase.BUDGET_EXHAUSTED, Reason.BUDGET_EXHAUSTED, 3),
    ],
)
def test_exit_code_is_that_of_the_job(team: Team, plugin: Plugin, phase: Phase, reason: Reason, code: int) -> None:
    team.create_job(status=status_of(phase, reason))
    followed = plugin("status", NAME, "--watch")
    assert followed.code == code and reason.sentence in followed.out
    assert ("kubectl tensafe explain" in followed.out) is (phase is Phase.FAILED)


def test_suspended_job_ends_the_command_and_not_the_job(team: Team, plugin: Plugin, manifest: Path) -> None:
    """A manifest with spec.suspend is the dry run: its end would not come."""
    team.create_job(status=status_of(Phase.SUSPENDED, Reason.SUSPENDED), spec__suspend=True)
    followed = plugin("run", str(manifest), "--set", "spec.suspend=true")
    assert followed.code == 4 and f"Continue it: kubectl tensafe resume {NAME}" in followed.out


def test_failed_attempt_is_reported_while_the_job_continues(team: Team, start: Start) -> None:
    team.create_job(status=running(1))
    follower = start("status", NAME, "--watch")
    follower.wait_for("1 of 20 steps")
    ended = Attempt(number=1, end_time="2026-01-01T00:00:00Z", reason="WorkerLost", message="A worker ended.")
    team.write_status(status_of(Phase.STARTING, Reason.RETRYING, attempts=(ended,)))
    follower.wait_for("attempt 1 ended: WorkerLost: A worker ended.")


def test_deleted_job_ends_the_command_with_an_error(team: Team, start: Start) -> None:
    team.create_job(status={**running(1), "ledgerName": "a-ledger"})
    follower = start("status", NAME, "--watch")
    follower.wait_for("1 of 20 steps")
    team.kubectl("delete", "tsj", NAME)
    code, printed = follower.end()
    assert code == 1 and f"the job {NAME} in the namespace {team.namespace} was deleted" in printed
    assert f"Its ledger stays: `kubectl tensafe ledger pledger/a-ledger -n {team.namespace}`" in printed


def test_job_deleted_before_it_had_a_ledger_has_left_none(team: Team, start: Start) -> None:
    team.create_job()
    follower = start("status", NAME, "--watch")
    follower.wait_for("No operator has written a status yet")
    team.kubectl("delete", "tsj", NAME)
    code, printed = follower.end()
    assert code == 1 and "was deleted" in printed and "ledger stays" not in printed


def test_wrong_manifest_is_refused_before_anything_is_sent(team: Team, plugin: Plugin, manifest: Path) -> None:
    for change, message in (
        ("spec.training.stepz=3", "unknown field: did you mean steps?"),
        ("spec.privacy.targetEpsilon=-1", "spec.privacy.targetEpsilon"),
        ("metadata.namespace=elsewhere", "metadata.namespace: is elsewhere, and -n is"),
    ):
        refused = plugin("run", str(manifest), "--set", change)
        assert refused.code == 2 and message in refused.err
    missing = plugin("run", "/nowhere/job.yaml")
    assert missing.code == 2 and "/nowhere/job.yaml: cannot be read" in missing.err
    assert json.loads(team.kubectl("get", "tsj", "-o", "json"))["items"] == []


def test_other_privacy_values_of_an_existing_job_are_refused_by_the_cluster(
    team: Team, plugin: Plugin, manifest: Path
) -> None:
    assert plugin("run", str(manifest), "--no-follow").code == 0
    refused = plugin("run", str(manifest), "--no-follow", "--set", "spec.privacy.targetEpsilon=9")
    assert refused.code == 1 and "spec.privacy cannot change after creation" in refused.err
    assert plugin("run", str(manifest), "--no-follow").code == 0, "the same manifest again changes nothing"
    assert team.job()["metadata"]["generation"] == 1


def test_field_of_another_tool_is_not_taken_over(team: Team, plugin: Plugin, manifest: Path) -> None:
    plugin("run", str(manifest), "--no-follow", "--set", "spec.suspend=true")
    other = ["--server-side", "--force-conflicts", "--field-manager=argocd"]
    document = {**MINIMAL, "spec": {**MINIMAL["spec"], "suspend": False}}
    team.kubectl("apply", *other, "-f", "-", text=json.dumps(document))
    refused = plugin("run", str(manifest), "--no-follow", "--set", "spec.suspend=true")
    assert refused.code == 1 and "argocd" in refused.err and ".spec.suspend" in refused.err


def test_only_what_the_manifest_sets_is_applied(team: Team, plugin: Plugin, manifest: Path) -> None:
    plugin("run", str(manifest), "--no-follow")
    (entry,) = json.loads(team.kubectl("get", "tsj", NAME, "-o", "json", "--show-managed-fields"))["metadata"][
        "managedFields"
    ]
    assert (entry["manager"], entry["operation"]) == ("kubectl-tensafe", "Apply")
    owned = {name.removeprefix("f:") for name in entry["fieldsV1"]["f:spec"]}
    assert owned == MINIMAL["spec"].keys()


def test_namespace_that_does_not_exist_is_named(plugin: Plugin, manifest: Path) -> None:
    refused = plugin("run", str(manifest), namespace="nowhere")
    assert refused.code == 1 and "kubectl create namespace nowhere" in refused.err
