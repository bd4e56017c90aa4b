"""A cluster made of dictionaries: the objects of one job, and all components that change them, in small steps.

`FakeOperator.reconcile` follows the real operator: it decides on what a cache shows, which may be an earlier moment. If
the decision is irreversible, it observes the cluster itself and decides again. Then it acts, and writes the status
last. It can be killed after any action. KubeRay, the kubelet, the trainer and users are methods that a test calls in
any order.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import format_time, parse_time
from tensafe_operator import names
from tensafe_operator.decision import decide
from tensafe_operator.decision.figures import ComputedFigures, Figure
from tensafe_operator.decision.observation import Action, Create, Decision, Delete, Observed
from tensafe_operator.decision.predecessors import FORGOTTEN_SECONDS
from tensafe_operator.decision.starting import ANSWER_SECONDS
from tensafe_operator.kinds import CORRECTED_KINDS, SHARED_KINDS
from tensafe_operator.settings import Settings
from tests.support.manifests import MINIMAL, changed

JOB_UID = "11111111-2222-3333-4444-555555555555"
SETTINGS = Settings(image="trainer:1")

TRAINING = {"spec.training": {"steps": 20, "expectedBatchSize": 250}, "spec.dataset.unit.atLeast": 5000}

_T = TypeVar("_T")


def _copied(value: _T) -> _T:
    """A deep copy. For plain data, pickle takes a fifth of the time of `copy.deepcopy`, and histories copy a lot."""
    copied: _T = pickle.loads(pickle.dumps(value))
    return copied


class Killed(Exception):
    """The operator process died at this point."""


@dataclass
class FakeCluster:
    """The objects, the clock, and the history of both.

    Attributes:
        now: the time, in seconds since the epoch.
        corrected: the NetworkPolicy and the RoleBinding, by kind.
        created: names of all RayJobs that were ever created, in order.
        overlapping: names of pods of the same or an earlier attempt that were left when a RayJob was created.
        keyless: names of RayJobs that were created when the job's key or the attempt's Secret did not exist.
        parameters: the ConfigMaps with the job's parameters, by name. They are immutable.
        conflicts: names of ConfigMaps that existed with other content when the operator created them.
        profile: the TenSafeClusterProfile that the job names, which no cache shows.
        figures: those that the accountant has computed; all of them unless a test says otherwise.
        snapshots: earlier moments that a slow cache may still show.
        shown: the last moment that the cache has shown of each kind of object. A cache never goes back.
    """

    job: dict[str, Any]
    now: float = 1_800_000_000.0
    ledger: dict[str, Any] | None = None
    ray_jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    corrected: dict[str, dict[str, Any]] = field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    others: set[tuple[str, str]] = field(default_factory=set)
    kuberay: bool = True
    profile: dict[str, Any] | None = None
    figures: Mapping[Figure[Any], Any] = field(default_factory=ComputedFigures)
    created: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    keyless: list[str] = field(default_factory=list)
    snapshots: list[Observed] = field(default_factory=list)
    shown: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("job", "ledger", "ray_jobs", "pods"), 0))
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def with_job(cls, **changes: Any) -> FakeCluster:
        """Return a cluster with one job. `changes` are fields of its manifest, with "__" for each dot."""
        metadata = {"metadata.namespace": "clinic", "metadata.uid": JOB_UID, "metadata.generation": 1}
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        cluster = cls(changed(MINIMAL, {**TRAINING, **metadata, **dotted}))
        cluster.take_snapshot()
        return cluster

    def observe(self) -> Observed:
        """Return all objects as they are now."""
        ray_jobs, pods, corrected = (tuple(each.values()) for each in (self.ray_jobs, self.pods, self.corrected))
        seen = Observed(self.job, self.ledger, ray_jobs, pods, (), self.kuberay, corrected, self.profile)
        return replace(_copied(seen), figures=self.figures)

    def observe_again(self, seen: Observed) -> Observed:
        """Return what the API server itself answers, whatever a cache has shown."""
        return self.observe()

    def observe_stale(self, random_: random.Random) -> Observed:
        """Return what caches show: each kind of object from a moment of its own, which is none before the last one."""
        last = len(self.snapshots) - 1
        for kind, shown in self.shown.items():
            self.shown[kind] = last if random_.random() < 0.6 else random_.randint(shown, last)
        job, ledger, ray_jobs, pods = (self.snapshots[self.shown[each]] for each in self.shown)
        return replace(job, ledger=ledger.ledger, ray_jobs=ray_jobs.ray_jobs, pods=pods.pods, corrected=pods.corrected)

    def learn(self, *kinds: str) -> None:
        """Let the cache show these kinds of objects as they are now, because the operator has written one."""
        self.take_snapshot()
        self.shown |= dict.fromkeys(kinds, len(self.snapshots) - 1)

    def take_snapshot(self) -> None:
        """Keep this moment as one that a slow cache may show later."""
        self.snapshots.append(replace(self.observe(), profile=None))

    @property
    def status(self) -> dict[str, Any]:
        """The status of the job."""
        return dict(self.job.get("status") or {})

    def keys(self) -> set[str]:
        """The names of the Secrets with the job's key."""
        prefix = names.key_prefix(self.job["metadata"]["name"], JOB_UID)
        return {name for kind, name in self.others if kind == "Secret" and name.startswith(prefix)}

    def tls_secrets(self) -> set[str]:
        """The names of the Secrets of attempts."""
        return {name for kind, name in self.others if kind == "Secret"} - self.keys()

    # The API server

    def create(self, manifest: dict[str, Any]) -> None:
        """Create an object, unless one of that name exists. One of a corrected kind is brought to the manifest."""
        manifest = _copied(manifest)
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        manifest["metadata"] |= {"uid": f"uid-{next(self._numbers)}", "creationTimestamp": format_time(self.now)}
        if kind == "PrivacyLedger":
            self.ledger = self.ledger or manifest
        elif kind == "RayJob":
            if name not in self.ray_jobs:
                self.ray_jobs[name] = manifest
                self.created.append(name)
                number = int(manifest["metadata"]["labels"][names.ATTEMPT])
                own = (manifest["metadata"].get("annotations") or {}).get(names.TLS_SECRET)
                self.keyless += [] if self.keys() and own in self.tls_secrets() else [name]
                self.overlapping += [pod for pod, body in self.pods.items() if self._could_still_charge(body, number)]
        elif kind in CORRECTED_KINDS:
            self.corrected[kind] = manifest
        else:
            if kind == "ConfigMap" and self.parameters.setdefault(name, manifest)["data"] != manifest["data"]:
                self.conflicts.append(name)
            self.others.add((kind, name))

    def delete_ray_job(self, name: str, uid: str) -> None:
        """Delete a RayJob, and mark its pods for deletion."""
        found = self.ray_jobs.get(name)
        if found is not None and found["metadata"]["uid"] == uid:
            self.ray_jobs.pop(name)
            for pod in self.pods.values():
                if pod["metadata"]["labels"][names.ATTEMPT] == found["metadata"]["labels"][names.ATTEMPT]:
                    pod["metadata"].setdefault("deletionTimestamp", format_time(self.now))

    # KubeRay and the kubelet

    def start_pods(self) -> None:
        """Start the pods of every RayJob that has not ended."""
        for ray_job in self.live_ray_jobs():
            attempt = ray_job["metadata"]["labels"][names.ATTEMPT]
            for role in ("head", "worker"):
                name = f"{ray_job['metadata']['name']}-{role}"
                labels = {names.ATTEMPT: attempt, names.JOB_UID: JOB_UID, "ray.io/node-type": role}
                ready = {"type": "Ready", "status": "True"}
                created = format_time(self.now)
                pod = {
                    "metadata": {
                        "name": name,
                        "uid": f"uid-of-{name}",
                        "labels": labels,
                        "creationTimestamp": created,
                    },
                    "status": {"phase": "Running", "conditions": [ready]},
                }
                self.pods.setdefault(name, pod)
            cluster = f"{ray_job['metadata']['name']}-x"
            started = {"startTime": format_time(self.now)}
            if not ray_job.get("status"):
                ray_job["status"] = {"jobDeploymentStatus": "Running", "rayClusterName": cluster, "rayJobInfo": started}

    def remove_terminating_pods(self) -> None:
        """Finish the deletion of pods, and delete pods without a RayJob."""
        self.pods = {
            name: pod
            for name, pod in self.pods.items()
            if "deletionTimestamp" not in pod["metadata"] and self._owner(pod) in self.ray_jobs
        }

    def end_ray_job(self, status: str, message: str = "") -> None:
        """End every RayJob that has not ended, with this `jobStatus`."""
        for ray_job in self.live_ray_jobs():
            reason = {"FAILED": {"reason": "AppFailed"}}.get(status, {})
            deployment = "Failed" if status == "FAILED" else "Complete"
            ended = {"jobStatus": status, "jobDeploymentStatus": deployment, "message": message, **reason}
            ray_job["status"] = {**(ray_job.get("status") or {}), **ended}
            for pod in self.pods.values():
                if self._owner(pod) == ray_job["metadata"]["name"]:
                    pod["metadata"].setdefault("deletionTimestamp", format_time(self.now))

    def evict(self) -> None:
        """A queue takes back the resources of every RayJob that has not ended: KubeRay deletes its pods."""
        for ray_job in self.live_ray_jobs():
            ray_job["spec"]["suspend"], ray_job["status"] = True, {"jobDeploymentStatus": "Suspended"}
            name = ray_job["metadata"]["name"]
            self.pods = {each: pod for each, pod in self.pods.items() if self._owner(pod) != name}

    def readmit(self) -> None:
        """The queue admits every RayJob again; `start_pods` starts their pods."""
        for ray_job in self.live_ray_jobs():
            if ray_job["spec"].get("suspend"):
                ray_job["spec"]["suspend"], ray_job["status"] = False, {}

    def live_ray_jobs(self) -> list[dict[str, Any]]:
        """Return the RayJobs that have not ended."""
        return [each for each in self.ray_jobs.values() if not (each.get("status") or {}).get("jobStatus")]

    # The trainer, as far as the rules of the ledger allow

    def acquire_ledger(self) -> None:
        """A worker of the newest attempt acquires the ledger: the next incarnation."""
        running = [pod for name, pod in self.pods.items() if name.endswith("worker")]
        if self.ledger is None or not running:
            return
        newest = max(running, key=lambda pod: int(pod["metadata"]["labels"][names.ATTEMPT]))
        attempt = int(newest["metadata"]["labels"][names.ATTEMPT])
        status = self.ledger.get("status") or {
            "attempt": 1,
            "charges": [],
            "chargedThrough": 0,
            "length": 1,
            "head": "0",
        }
        if attempt < status["attempt"]:
            return
        own = next((charge for charge in status["charges"] if charge["attempt"] == attempt), None)
        if own is None:
            own = {"attempt": attempt, "steps": 0, "incarnation": 0}
            status["charges"].append(own)
        own |= {"incarnation": own["incarnation"] + 1, "podUID": newest["metadata"].get("uid", "pod")}
        status |= {"attempt": attempt, "length": status["length"] + 1}
        status.pop("outcome", None)
        self.ledger["status"] = status

    def charge(self, steps: int) -> None:
        """Charge steps to the attempt that holds the ledger."""
        if self.ledger is None or "status" not in self.ledger or not self.pods:
            return
        status = self.ledger["status"]
        own = next(charge for charge in status["charges"] if charge["attempt"] == status["attempt"])
        own["steps"] += steps
        through = min(20, status["chargedThrough"] + steps)
        status |= {"chargedThrough": through, "length": status["length"] + 1}
        status["progress"] = {"step": through, "lastUpdateTime": format_time(self.now)}

    def record_outcome(self, outcome: str) -> None:
        """Record an outcome in the ledger, with a final checkpoint unless it is Suspended."""
        if self.ledger is None or "status" not in self.ledger:
            return
        status = self.ledger["status"]
        status["outcome"] = outcome
        if outcome != "Suspended" and not any(each["final"] for each in status.get("releases", ())):
            charged = sum(charge["steps"] for charge in status["charges"])
            final = {"uri": "s3://m/final", "step": 20, "attempt": status["attempt"], "digest": "d", "final": True}
            status.setdefault("releases", []).append({**final, "statementDigest": "s", "stepsCharged": charged})
        LedgerStatus.model_validate(status, by_alias=True, by_name=False)

    # Users

    def suspend(self, value: bool) -> None:
        """Set `spec.suspend`."""
        self.job["spec"]["suspend"] = value

    def _could_still_charge(self, pod: dict[str, Any], number: int) -> bool:
        """Return whether a pod belongs to attempt `number` or an earlier one, on a node that may still answer."""
        deletion = parse_time(pod["metadata"].get("deletionTimestamp"))
        forgotten = deletion is not None and self.now >= deletion + FORGOTTEN_SECONDS
        attempt = names.attempt_of(pod)
        return attempt is not None and attempt <= number and not forgotten

    def _owner(self, pod: dict[str, Any]) -> str:
        return str(pod["metadata"]["name"].rsplit("-", 1)[0])


class FakeOperator:
    """Applies decisions as the real operator does. A new one has read everything."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.wake: float | None = None
        self.asked: tuple[Figure[Any], ...] = ()
        cluster.learn(*cluster.shown)

    def reconcile(self, seen: Observed | None = None, dies_after: int | None = None) -> None:
        """Reconcile once on what a cache shows, by default the last snapshot.

        Args:
            dies_after: raise `Killed` after so many actions. The status write is one.
        """
        cluster = self.cluster
        seen = seen or cluster.snapshots[-1]
        decision = decide(seen, cluster.now, SETTINGS)
        if decision.irreversible:
            seen = cluster.observe_again(seen)
            decision = decide(seen, cluster.now, SETTINGS)
        self.asked, created = decision.figures, False
        for number, action in enumerate(decision.actions):
            if number == dies_after:
                raise Killed
            created |= isinstance(action, Create) and action.kind not in SHARED_KINDS
            self._take(action)
        if len(decision.actions) == dies_after:
            raise Killed
        before = Status.model_validate(seen.job.get("status") or {}, by_alias=True, by_name=False)
        written = before != decision.status and seen.job == cluster.job
        if written:
            cluster.job["status"] = decision.status.model_dump(by_alias=True, mode="json", exclude_none=True)
            cluster.learn("job")
        self.wake = cluster.now if written or created else decision.wake

    def _take(self, action: Action) -> None:
        match action:
            case Create():
                self.cluster.create(action.manifest)
                self.cluster.learn(*{"PrivacyLedger": ("ledger",), "RayJob": ("ray_jobs",)}.get(action.kind, ()))
            case Delete("RayJob", name, str(uid)):
                self.cluster.delete_ray_job(name, uid)
            case Delete(kind, name):
                self.cluster.others.discard((kind, name))
                self.cluster.corrected.pop(kind, None)

    def settle(self, passes: int = 12) -> None:
        """Reconcile until nothing changes."""
        for _ in range(passes):
            before = self.cluster.observe()
            self.cluster.take_snapshot()
            self.reconcile()
            if self.cluster.observe() == before:
                return


def started_job(**changes: Any) -> tuple[FakeCluster, FakeOperator]:
    """Return a job whose first attempt has a RayJob, which its status reports as started."""
    cluster = FakeCluster.with_job(**changes)
    operator = FakeOperator(cluster)
    for seconds in (0, ANSWER_SECONDS, -ANSWER_SECONDS):
        cluster.now += seconds
        operator.settle()
    return cluster, operator


def running_job(**changes: Any) -> tuple[FakeCluster, FakeOperator]:
    """Return a job whose first attempt has charged five steps."""
    cluster, operator = started_job(**changes)
    cluster.start_pods()
    cluster.acquire_ledger()
    cluster.charge(5)
    operator.settle()
    return cluster, operator


def start_next_attempt(cluster: FakeCluster, operator: FakeOperator) -> dict[str, Any]:
    """End the open attempt as a failure, and return the RayJob of the newest attempt after the backoff."""
    cluster.end_ray_job("FAILED")
    operator.settle()
    cluster.remove_terminating_pods()
    cluster.now += 400
    operator.settle()
    return cluster.ray_jobs[cluster.created[-1]]


def condition(cluster: FakeCluster, kind: str) -> dict[str, Any]:
    """Return the condition of this type from the job's status."""
    return next(each for each in cluster.status["conditions"] if each["type"] == kind)


def own_actions(decision: Decision) -> list[Action]:
    """Return the actions for the job alone, without those for what the jobs of a namespace share."""
    return [each for each in decision.actions if each.kind not in SHARED_KINDS]
