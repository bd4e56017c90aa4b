"""The operator as a process, beside a real API server: it leads, reconciles, dies, and another one goes on."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from e2e.platform.controlplane import ControlPlane
from e2e.platform.fakes.kuberay import install_kuberay_crds
from e2e.platform.fixtures.manifests import ARITHMETIC, MINIMAL, changed
from e2e.platform.fixtures.operator_process import OperatorProcess
from e2e.platform.fixtures.polling import TIMEOUT_SECONDS, wait_until
from e2e.platform.fixtures.roles import install_roles

pytestmark = pytest.mark.cluster

FAILOVER_SECONDS, HANDOVER_SECONDS, RECONNECT_SECONDS = 20, 8, 20
TOLD_SECONDS = 10
PATIENT = "import tensafe_operator.runtime.leader_election as lease; lease.RENEW_SECONDS = 60.0"
"""Does not lose its Lease where the machine stands still for some seconds."""


class Plane:
    """A control plane of the test's own, whose servers it may kill, and operators beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plane = ControlPlane(folder / "plane")
        self.operators: list[OperatorProcess] = []

    def start(self, *, kinds: bool = True, **values: Any) -> None:
        """Start the servers; install our kinds and KubeRay's, and the roles of a chart with these values."""
        self.plane.start()
        for namespace in ("clinic", "lab"):
            self.plane.kubectl("create", "namespace", namespace)
        self.kubeconfig = install_roles(self.plane, **values)
        self.settings = {"TENSAFE_NAMESPACES": ",".join(values.get("namespaces", ()))}
        if kinds:
            self.install_ours()
            install_kuberay_crds(self.plane)

    def install_ours(self) -> None:
        self.plane.kubectl("apply", "-f", str(Path(__file__).parents[2] / "crds"))
        self.plane.wait_for_crds()

    def refused(self) -> list[str]:
        """What the operator asked for and may not have."""
        asked = self.plane.requests("tensafe-system:tensafe-operator")
        assert len(asked) > 20
        return [each["requestURI"] for each in asked if each["responseStatus"]["code"] == 403]

    def stop(self) -> None:
        for each in self.operators:
            each.kill()
        self.plane.stop()

    def operator(self, kubeconfig: Path | None = None, *, before: str = "", **more: str) -> OperatorProcess:
        """Start an operator.

        Args:
            kubeconfig: who it is, where it is not the chart's account in tensafe-system.
            before: Python that is run before it begins.
            more: environment.
        """
        log = self.folder / f"operator-{len(self.operators)}.log"
        environment = {**self.settings, "KUBECONFIG": str(kubeconfig or self.kubeconfig), **more}
        self.operators.append(OperatorProcess(log, environment, before=before))
        return self.operators[-1]

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("operator-*.log")))

    def apply(self, name: str, namespace: str = "clinic", changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        job = changed(MINIMAL, {"metadata.name": name, "metadata.namespace": namespace, **changes})
        # As Argo CD and Helm do: a field that the schema does not know is dropped in silence.
        self.plane.kubectl("apply", "--validate=ignore", "-f", "-", text=json.dumps(job))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        done = self.plane.kubectl("-n", "clinic", "get", kind, name, "-o", "json", check=False)
        return None if done.returncode else dict(json.loads(done.stdout))

    def until(self, happened: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until something has happened, in so many seconds for which the CPUs were there. Operators that lost
        their Lease meanwhile are started again.
        """

        def so() -> object:
            for each in self.operators:
                each.restart_if_lease_lost()
            return happened()

        wait_until(so, seconds, lambda: self.logs()[-3000:])

    def ray_jobs(self) -> list[str]:
        """Names of all RayJobs that there are."""
        names = ("get", "rayjob", "-o", "jsonpath={.items[*].metadata.name}")
        return sorted(self.plane.kubectl("-n", "clinic", *names).stdout.split())

    def begun(self, name: str, attempt: int = 1) -> bool:
        """Whether the status tells since when this attempt runs, which is the last that is said of a beginning."""
        status = (self.get("tsj", name) or {}).get("status") or {}
        return any(each["number"] == attempt and "startTime" in each for each in status.get("attempts", ()))

    def lease(self) -> tuple[str, str]:
        """Who holds the Lease, and when it was renewed."""
        told = ("get", "lease", "tensafe-operator", "-o", "jsonpath={.spec.holderIdentity} {.spec.renewTime}")
        holder, renewed = self.plane.kubectl("-n", "tensafe-system", *told).stdout.split(" ")
        return holder, renewed

    def through(self, wire: Wire) -> Path:
        """The operator's kubeconfig, by way of a wire."""
        path = self.folder / "through-the-wire.kubeconfig"
        path.write_text(self.kubeconfig.read_text().replace(self.plane.url, wire.url))
        path.chmod(0o600)
        return path


class Wire:
    """Carries connections to the API server, and can freeze those that are open, or be cut."""

    def __init__(self, url: str) -> None:
        self._target = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._epoch = 0
        self.cut = False
        """Whether new connections come to nothing."""
        self._open: list[socket.socket] = []

    def __enter__(self) -> Wire:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            each.close()

    def freeze(self) -> None:
        """Carry nothing more on the connections that are open now, and do not close them."""
        self._epoch += 1

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.cut:
                near.close()
                continue
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(*pair, self._epoch), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, epoch: int) -> None:
        try:
            while data := source.recv(65536):
                if epoch != self._epoch:
                    return  # frozen: the data are lost, the connection stays open
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # either side is gone


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Plane]:
    """Nothing is started yet."""
    made = Plane(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def plane(bare: Plane) -> Plane:
    bare.start()
    return bare


def test_one_leads_and_when_it_dies_the_other_goes_on(plane: Plane) -> None:
    both = [plane.operator(), plane.operator()]
    plane.apply("one")
    plane.until(lambda: plane.begun("one"))
    shown = 'tensafe_job_phase{job="one",namespace="clinic",phase="Starting"} 1.0'
    plane.until(lambda: any(shown in each.metrics() for each in both))
    plane.until(lambda: sorted(each.leading for each in both) == [False, True])
    second, first = sorted(both, key=lambda each: each.leading)

    before = plane.get("tsj", "one")
    first.kill()
    plane.until(lambda: second.leading, FAILOVER_SECONDS)
    plane.apply("two")
    plane.until(lambda: plane.begun("two"))
    assert plane.get("tsj", "one") == before, "a new leader writes nothing that is so already"

    # SIGTERM gives the lease back, so the next one need not wait for it to run out.
    third = plane.operator()
    plane.until(third.metrics)
    assert second.terminate() == 0, plane.logs()
    plane.until(lambda: third.leading, HANDOVER_SECONDS)
    third.restart_if_lease_lost()
    assert plane.refused() == []
    about = ("get", "events", "--field-selector=involvedObject.kind=TenSafeTrainingJob,involvedObject.name=one")
    told = json.loads(plane.plane.kubectl("-n", "clinic", *about, "-o", "json").stdout)["items"]
    assert [each["reason"] for each in told].count("AttemptStarted") == 1, "told once, not by each leader"
    lines = [json.loads(each) for each in plane.logs().splitlines() if "AttemptStarted" in each]
    assert sorted((line["namespace"], line["job"], line["attempt"]) for line in lines) == [
        ("clinic", "one", 1),
        ("clinic", "two", 1),
    ]


NOISE = """
import asyncio, logging
import tensafe_operator.runtime.watch as module

real, left = module.watch, []

async def open_still():
    try:
        yield
    finally:
        raise RuntimeError("closed in the wrong order")

async def watch(*arguments):
    left.append(open_still())
    await anext(left[0])
    try:
        await real(*arguments)
    finally:
        logging.getLogger("kopf.reactor").warning("not executed due to cancellation")

module.watch = watch
"""
"""What kopf's tasks and generators sometimes say of being cancelled, said always."""


def test_a_stop_that_was_asked_for_is_quiet_and_gives_the_lease_back(plane: Plane) -> None:
    operator = plane.operator(before=NOISE)
    plane.until(lambda: operator.leading)
    for number in range(5):
        plane.apply(f"job-{number}")
    plane.until(lambda: plane.begun("job-0"))
    before = len(plane.logs())
    assert operator.terminate() == 0, plane.logs()
    said = [json.loads(line) for line in plane.logs()[before:].splitlines()]
    assert [line for line in said if line["level"] != "INFO"] == []
    assert plane.lease()[0] == ""


def test_a_frozen_api_server_costs_the_lease_and_the_process_ends(plane: Plane) -> None:
    """It cannot know whether somebody else leads by now, so it does nothing more."""
    operator = plane.operator()
    plane.until(lambda: operator.leading)
    plane.plane.kill("apiserver", signal.SIGSTOP)
    assert operator.wait_for_exit() == 1 and operator.lease_lost
    plane.plane.kill("apiserver", signal.SIGCONT)
    plane.apply("after")
    plane.operator()
    plane.until(lambda: plane.begun("after"))


@pytest.mark.parametrize("namespaces", [[], ["clinic"]], ids=["everywhere", "in one namespace"])
def test_an_operator_that_was_there_first_sees_the_kinds_that_come_later(bare: Plane, namespaces: list[str]) -> None:
    bare.start(kinds=False, **({"namespaces": namespaces} if namespaces else {}))
    operator = bare.operator()
    bare.until(lambda: operator.leading)
    bare.install_ours()
    bare.apply("early")
    bare.apply("elsewhere", "lab")
    bare.until(lambda: "KubeRayMissing" in json.dumps(bare.get("tsj", "early")))
    install_kuberay_crds(bare.plane)
    bare.until(lambda: bare.begun("early"))
    patch = json.dumps({"status": {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed"}})
    told = ("patch", "rayjob", "early-a1", "--subresource=status", "--type=merge", "-p", patch)
    bare.plane.kubectl("-n", "clinic", *told)
    bare.until(lambda: "WorkerLost" in json.dumps(bare.get("tsj", "early")))
    there = bare.plane.kubectl("-n", "lab", "get", "rayjob", "-o", "name").stdout
    assert bool(there) == (not namespaces)
    operator.restart_if_lease_lost()
    assert bare.refused() == []


def test_an_api_server_that_dies_and_comes_back_finds_everything_as_it_was(plane: Plane) -> None:
    operator = plane.operator()
    plane.until(lambda: operator.leading)
    plane.apply("before")
    plane.until(lambda: plane.begun("before"))
    plane.until(lambda: 'phase="Starting"' in operator.metrics())
    before = plane.get("tsj", "before")
    plane.plane.kill("apiserver")
    assert operator.wait_for_exit() == 1, "without a Lease it must not act; its pod is started again"
    plane.plane.start_api_server()
    plane.operator()
    plane.apply("after")
    plane.until(lambda: plane.begun("after"))
    assert plane.get("tsj", "before") == before
    assert plane.ray_jobs() == ["after-a1", "before-a1"]


def test_streams_that_freeze_in_silence_are_opened_anew(plane: Plane) -> None:
    """A load balancer that forgets a connection tells nobody. New connections go through."""
    with Wire(plane.plane.url) as wire:
        through = plane.through(wire)
        soon = "\nimport tensafe_operator.runtime.watch as watch; watch.INACTIVITY_SECONDS = 5.0"
        operator = plane.operator(through, before=PATIENT + soon)
        plane.until(lambda: operator.leading)
        plane.apply("before")
        plane.until(lambda: plane.begun("before"))
        wire.freeze()
        lease = plane.lease()
        plane.until(lambda: plane.lease() != lease, RECONNECT_SECONDS)
        plane.apply("after")
        plane.until(lambda: plane.begun("after"))
        assert plane.lease()[0] == lease[0], "it is the process that was cut off which found what it had missed"


@pytest.mark.parametrize(
    ("asked", "says"), [("clinic,nowhere", "is clinic,nowhere"), ("", "is not set (all namespaces)")]
)
def test_who_may_not_look_at_a_namespace_says_which_setting_names_it(bare: Plane, asked: str, says: str) -> None:
    bare.start(namespaces=["clinic"])
    assert bare.operator(TENSAFE_NAMESPACES=asked).wait_for_exit(TIMEOUT_SECONDS) == 1
    assert f"TENSAFE_NAMESPACES {says}, but the operator may not list all objects there" in bare.logs()
    assert "Traceback" not in bare.logs()


CUT_SECONDS = 60.0


def test_who_is_cut_off_for_a_minute_ends_and_whoever_is_started_then_finds_what_was_missed(plane: Plane) -> None:
    with Wire(plane.plane.url) as wire:
        through = plane.through(wire)
        operator = plane.operator(through)
        plane.until(lambda: operator.leading)
        plane.apply("before")
        plane.until(lambda: plane.begun("before"))
        wire.cut = True
        wire.freeze()
        since = time.monotonic()
        assert operator.wait_for_exit() == 1, "without a Lease it must not act; its pod is started again"
        operator = plane.operator(through)
        plane.apply("meanwhile")
        plane.plane.kubectl("-n", "clinic", "delete", "rayjob", "before-a1")
        plane.until(lambda: time.monotonic() > since + CUT_SECONDS)
        assert "tensafe_leading 0.0" in operator.metrics() and not plane.begun("meanwhile")
        wire.cut = False
        plane.until(lambda: plane.begun("meanwhile"))
        plane.until(lambda: plane.begun("before", attempt=2))
        assert plane.ray_jobs() == ["before-a2", "meanwhile-a1"]
        operator.restart_if_lease_lost()


def test_two_operators_by_mistake_make_everything_once(plane: Plane) -> None:
    """Two releases in two namespaces have two Leases, so both lead."""
    other = install_roles(plane.plane, "tensafe-other", **{"rbac.trainerRole": False})
    both = plane.operator(), plane.operator(other, TENSAFE_OWN_NAMESPACE="tensafe-other")
    plane.until(lambda: all(each.leading for each in both))
    names = [f"job-{number}" for number in range(8)]
    for name in names:
        plane.apply(name)
    plane.until(lambda: all(plane.begun(name) for name in names))
    starting = ('phase="Starting"', len(names))
    plane.until(lambda: all(each.metrics().count(starting[0]) == starting[1] for each in both))
    before = {name: plane.get("tsj", name) for name in names}
    assert plane.ray_jobs() == [f"{name}-a1" for name in names]
    ledgers = plane.plane.kubectl("-n", "clinic", "get", "pledger", "-o", "name").stdout.split()
    assert len(ledgers) == len(names)
    plane.apply("last")
    plane.until(lambda: plane.begun("last"))
    assert {name: plane.get("tsj", name) for name in names} == before, "they do not write over each other for ever"


def test_what_the_api_server_takes_and_cannot_be_run_is_told_within_ten_seconds(plane: Plane) -> None:
    operator = plane.operator(before=PATIENT)
    plane.until(lambda: operator.leading)
    wrong = [*ARITHMETIC, ({"spec.cluster.wokers": 3}, "spec.cluster.wokers: unknown field: did you mean workers?")]
    for number, (changes, _) in enumerate(wrong):
        plane.apply(f"wrong-{number}", changes=changes)
    for number, (_, says) in enumerate(wrong):
        plane.until(lambda number=number: condition(plane.get("tsj", f"wrong-{number}"), "Stalled"), TOLD_SECONDS)
        job = plane.get("tsj", f"wrong-{number}")
        accepted, stalled = condition(job, "Accepted"), condition(job, "Stalled")
        assert (accepted["status"], stalled["status"]) == ("False", "True")
        assert stalled["reason"] in ("InvalidManifest", "UnknownField")
        assert says in stalled["message"]
    assert plane.ray_jobs() == []
    assert plane.plane.kubectl("-n", "clinic", "get", "pledger", "-o", "name").stdout == ""
    plane.apply(
        f"wrong-{len(ARITHMETIC)}", changes={"spec.suspend": False}
    )  # mended: the field is gone from what was applied
    plane.until(lambda: plane.begun(f"wrong-{len(ARITHMETIC)}"))


def condition(job: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    found = ((job or {}).get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), {})
