"""`kubectl tensafe logs` on a real API server, which asks a kubelet's endpoint for the logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Attempt
from tensafe_kubectl.logs import Source, _write, failure_in_log, failure_of_pod, order
from tests.support.fakes.kubelet import NODE, FakeKubelet
from tests.support.plugin_team import NAME, Plugin, Team, Terminal, running, status_of
from tests.support.programs.controlplane import ControlPlane

cluster = pytest.mark.cluster
STARTED = json.dumps({"kind": "started", "rank": 1, "time": 10.0})
LOST = json.dumps({"kind": "lost", "rank": 1, "time": 20.0, "reason": "WorkerLost", "message": "out of memory"})


@pytest.fixture
def kubelet(control_plane: ControlPlane, tmp_path: Path) -> Iterator[FakeKubelet]:
    kubelet = FakeKubelet(control_plane, tmp_path)
    yield kubelet
    kubelet.stop()


def ended(code: int, time: str, name: str = "ray-worker") -> dict[str, Any]:
    """The status of a pod whose container has ended."""
    state = {"terminated": {"exitCode": code, "reason": "OOMKilled" if code == 137 else "Error", "finishedAt": time}}
    container = {"name": name, "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": "Failed", "containerStatuses": [container]}


@cluster
def test_rank_that_failed_first_is_on_top(team: Team, plugin: Plugin, kubelet: FakeKubelet) -> None:
    job = team.create_job(status=running(5))
    team.create_pod("head-0", job, "head", {"phase": "Running"}, nodeName=NODE)
    team.create_pod("worker-0", job, "worker", ended(1, "2026-01-01T00:00:09Z"), nodeName=NODE)
    team.create_pod("worker-1", job, "worker", ended(137, "2026-01-01T00:00:05Z"), nodeName=NODE)
    kubelet.logs = {
        ("head-0", "ray-head"): "driver line\n",
        ("worker-0", "ray-worker"): "late failure\n",
        ("worker-1", "ray-worker"): f"{STARTED}\nfirst failure\n",
    }
    shown = plugin("logs", NAME)
    assert shown.code == 0, shown.err
    titles = [line for line in shown.out.splitlines() if line.startswith("==>")]
    assert titles == [
        "==> worker-1 (worker, rank 1): OOMKilled, exit code 137 <==",
        "==> worker-0 (worker): Error, exit code 1 <==",
        "==> head-0 (head) <==",
    ]
    assert shown.out.index("first failure") < shown.out.index("late failure") < shown.out.index("driver line")
    workers = plugin("logs", NAME, "--workers", "--tail", "1")
    assert "driver line" not in workers.out and "started" not in workers.out and "first failure" in workers.out


@cluster
def test_lost_incarnation_in_a_running_pod_counts_as_a_failure(
    team: Team, plugin: Plugin, kubelet: FakeKubelet
) -> None:
    job = team.create_job(status=running(5))
    for name, log in (("worker-0", "well\n"), ("worker-1", f"{STARTED}\n{LOST}\n")):
        team.create_pod(name, job, "worker", {"phase": "Running"}, nodeName=NODE)
        kubelet.logs[name, "ray-worker"] = log
    out = plugin("logs", NAME).out
    assert out.startswith("==> worker-1 (worker, rank 1): WorkerLost: out of memory <==")


@cluster
def test_record_of_a_pod_cannot_control_the_terminal_or_imitate_another_title(
    team: Team, plugin: Plugin, kubelet: FakeKubelet
) -> None:
    job = team.create_job(status=running(5))
    team.create_pod("worker-0", job, "worker", {"phase": "Running"}, nodeName=NODE)
    lost = {"kind": "lost", "rank": 0, "time": 1, "reason": "\x1b]0;x\x07", "message": "a\n==> b \u202ec \ud800<=="}
    kubelet.logs["worker-0", "ray-worker"] = f"{json.dumps(lost)}\n"
    shown = plugin("logs", NAME)
    assert shown.code == 0
    assert shown.out.splitlines()[0] == "==> worker-0 (worker, rank 0): �]0;x�: a ==> b c �<== <=="


def test_line_of_a_log_is_cleaned_on_a_terminal_and_as_it_is_in_a_pipe(
    terminal: Terminal, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    line = "\x1b[36m(worker)\x1b[0m \x1b[2Jε\x9b1m\u202e 50 %\r60 %\r".encode() + b"\xff"
    _write(line)
    assert capfdbinary.readouterr().out == line + b"\n"
    assert terminal(lambda: _write(line)) == "(worker) �[2Jε1m 50 % 60 % �\r\n"


@cluster
def test_following_several_pods_names_the_pod_of_each_line(team: Team, plugin: Plugin, kubelet: FakeKubelet) -> None:
    job = team.create_job(status=running(5))
    for name in ("worker-0", "worker-1"):
        team.create_pod(name, job, "worker", {"phase": "Running"}, nodeName=NODE)
        kubelet.logs[name, "ray-worker"] = f"a line of {name}\n"
    shown = plugin("logs", NAME, "-f")
    assert shown.code == 0
    assert sorted(shown.out.splitlines()) == ["[worker-0] a line of worker-0", "[worker-1] a line of worker-1"]


@cluster
def test_previous_instance_is_read(team: Team, plugin: Plugin, kubelet: FakeKubelet) -> None:
    job = team.create_job(status=running(5))
    team.create_pod("worker-0", job, "worker", {"phase": "Running"}, nodeName=NODE)
    kubelet.previous["worker-0", "ray-worker"] = "before the restart\n"
    assert "before the restart" in plugin("logs", NAME, "--previous").out
    unreadable = plugin("logs", NAME)
    assert unreadable.code == 1 and "has no log" in unreadable.err


@cluster
def test_only_pods_of_the_attempt_and_of_the_job_itself_are_read(
    team: Team, plugin: Plugin, kubelet: FakeKubelet
) -> None:
    job = team.create_job(status=running(5))
    namesake = {"metadata": {"name": NAME, "uid": "another"}}
    for name, owner in (("worker-0", job), ("foreign", namesake)):
        team.create_pod(name, owner, "worker", {"phase": "Running"}, nodeName=NODE)
        kubelet.logs[name, "ray-worker"] = f"a line of {name}\n"
    out = plugin("logs", NAME).out
    assert "worker-0" in out and "foreign" not in out
    other = plugin("logs", NAME, "--attempt", "2")
    assert other.code == 1 and "has no attempt 2: its attempts are 1" in other.err


@cluster
def test_attempt_whose_pods_are_gone_names_where_its_last_lines_are(team: Team, plugin: Plugin) -> None:
    attempt = Attempt(
        number=1,
        ray_job_name=f"{NAME}-a1",
        end_time="2026-01-01T00:00:00Z",
        reason="WorkerLost",
        message="A worker ended unexpectedly.",
    )
    team.create_job(status=status_of(Phase.FAILED, Reason.WORKER_LOST, attempts=(attempt,)))
    team.create_ray_job(f"{NAME}-a1")
    gone = plugin("logs", NAME)
    assert gone.code == 1 and "KubeRay removes them" in gone.err
    assert f"kubectl get rayjob {NAME}-a1 -n {team.namespace} -o jsonpath='{{.status.message}}'" in gone.err


@cluster
def test_attempt_whose_ray_job_is_gone_names_what_is_left(team: Team, plugin: Plugin) -> None:
    """With podsTTLSeconds it goes when the next attempt starts."""
    ended = {"end_time": "2026-01-01T00:00:00Z", "reason": "WorkerLost", "message": "a node was lost"}
    attempts = [Attempt(number=number, ray_job_name=f"{NAME}-a{number}", **ended) for number in (1, 2)]
    job = team.create_job(status=status_of(Phase.STARTING, Reason.RETRYING, attempts=tuple(attempts)))
    team.create_pod("head-0", job, "head")  # of the first attempt
    gone = plugin("logs", NAME)
    assert gone.code == 1 and "It ended with WorkerLost: a node was lost. " in gone.err
    assert f"Its RayJob {NAME}-a2 is gone, too, and the log of its driver with it." in gone.err
    assert "kubectl get rayjob" not in gone.err
    assert "There are pods of: attempt 1." in gone.err


def test_failure_of_an_earlier_incarnation_is_over_when_the_next_one_starts() -> None:
    assert failure_in_log([STARTED, LOST]) == (1, 20.0, "WorkerLost: out of memory")
    assert failure_in_log([LOST, "a line of Ray", '{"kind": broken', STARTED]) == (1, float("inf"), "")
    assert failure_in_log([]) == (None, float("inf"), "")


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"lost","time":"abc"}',
        '{"kind":"lost","time":[1]}',
        '{"kind":"lost","time":{"a":1}}',
        '{"kind":"lost","time":NaN}',
        '{"kind":"lost","time":1' + "0" * 400 + "}",
        '{"kind":"lost","time":1' + "0" * 5000 + "}",
        '{"kind":"lost","time":3,"rank":"first"}',
        '{"kind":"lost","time":3,"rank":[0]}',
        '{"kind":' + "[" * 100_000,
    ],
    ids=lambda line: line[:36],
)
def test_line_that_only_looks_like_a_record_is_ignored(line: str) -> None:
    assert failure_in_log([line]) == (None, float("inf"), "")
    assert failure_in_log([STARTED, LOST, line]) == (1, 20.0, "WorkerLost: out of memory")


def test_init_container_that_failed_is_the_one_to_look_at() -> None:
    state = {"terminated": {"exitCode": 2, "finishedAt": "1970-01-01T00:00:07Z"}}
    pod = {
        "spec": {"containers": [{"name": "ray-worker"}]},
        "status": {"initContainerStatuses": [{"name": "first-look", "state": state}]},
    }
    assert failure_of_pod(pod) == ("first-look", 7.0, "Error, exit code 2")
    assert failure_of_pod({"spec": pod["spec"]}) == ("ray-worker", float("inf"), "")


def test_order_is_failures_by_time_then_workers_by_rank_then_the_head() -> None:
    head, first, second = Source("a", "c", "head"), Source("b", "c", "worker", 1), Source("c", "c", "worker", 0)
    failed, unknown = Source("d", "c", "worker", 2, 5.0), Source("e", "c", "worker")
    assert order([head, unknown, first, second, failed]) == [failed, second, first, unknown, head]
