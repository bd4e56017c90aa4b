"""A cluster made of dictionaries: objects of one job, and everybody who changes them, one small step at a time.

`Operator.reconcile` is the real one's way in short: plan on what a cache shows, which may be any earlier moment; where
the plan is grave, look again at the world itself; then act, and write the status last. It can be killed after any
action. KubeRay, the kubelet, the trainer and people are methods that a test calls in any order.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from jobs import MINIMAL, changed

from tensafe_api.resources.ledger import LedgerStatus
from tensafe_operator import names
from tensafe_operator.plan import FORGOTTEN_SECONDS, plan
from tensafe_operator.plan.observed import Create, DeleteRayJob, Observed
from tensafe_operator.plan.times import seconds_of, text_of
from tensafe_operator.settings import Settings

JOB_UID = "11111111-2222-3333-4444-555555555555"
SETTINGS = Settings(image="trainer:1")
TRAINING = {"spec.training": {"steps": 20, "expectedBatchSize": 250}, "spec.dataset.unit.atLeast": 5000}


class Killed(Exception):
    """The operator died here."""


@dataclass
class World:
    """The objects, the clock, and what has ever happened to them."""

    job: dict[str, Any]
    now: float = 1_800_000_000.0
    ledger: dict[str, Any] | None = None
    ray_jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    others: set[tuple[str, str]] = field(default_factory=set)
    kuberay: bool = True
    made: list[str] = field(default_factory=list)
    """Names of all RayJobs that were ever made, in order."""
    beside: list[str] = field(default_factory=list)
    """Names of pods of its own or an earlier attempt that were left when a RayJob was made."""
    pasts: list[Observed] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def with_job(cls, **changes: Any) -> World:
        metadata = {"metadata.namespace": "clinic", "metadata.uid": JOB_UID, "metadata.generation": 1}
        dotted = {path.replace("__", "."): value for path, value in changes.items()}
        world = cls(changed(MINIMAL, {**TRAINING, **metadata, **dotted}))
        world.remember()
        return world

    def observed(self) -> Observed:
        """Everything as it is now."""
        return copy.deepcopy(
            Observed(self.job, self.ledger, tuple(self.ray_jobs.values()), tuple(self.pods.values()), (), self.kuberay)
        )

    def observed_again(self, seen: Observed) -> Observed:
        """What the API server itself says, whatever a cache showed."""
        return self.observed()

    def blurred(self, random_: random.Random) -> Observed:
        """What caches show: each kind of object as it was at some moment of its own."""

        def moment() -> Observed:
            return self.pasts[-1 if random_.random() < 0.6 else random_.randrange(len(self.pasts))]

        job, ledger, pods = moment(), moment(), moment()
        return replace(job, ledger=ledger.ledger, ray_jobs=pods.ray_jobs, pods=pods.pods)

    def remember(self) -> None:
        """Let this moment be one that a slow cache may show later."""
        self.pasts.append(self.observed())

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.job.get("status") or {})

    # The API server

    def create(self, manifest: dict[str, Any]) -> None:
        manifest = copy.deepcopy(manifest)
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        manifest["metadata"] |= {"uid": f"uid-{next(self._numbers)}", "creationTimestamp": text_of(self.now)}
        if kind == "PrivacyLedger":
            self.ledger = self.ledger or manifest
        elif kind == "RayJob":
            if name not in self.ray_jobs:
                self.ray_jobs[name] = manifest
                self.made.append(name)
                number = int(manifest["metadata"]["labels"][names.ATTEMPT])
                self.beside += [pod for pod, body in self.pods.items() if self._could_still_charge(body, number)]
        else:
            self.others.add((kind, name))

    def delete_ray_job(self, name: str, uid: str) -> None:
        found = self.ray_jobs.get(name)
        if found is not None and found["metadata"]["uid"] == uid:
            self.ray_jobs.pop(name)
            for pod in self.pods.values():
                if pod["metadata"]["labels"][names.ATTEMPT] == found["metadata"]["labels"][names.ATTEMPT]:
                    pod["metadata"].setdefault("deletionTimestamp", text_of(self.now))

    # KubeRay and the kubelet

    def start_pods(self) -> None:
        for ray_job in self.live():
            attempt = ray_job["metadata"]["labels"][names.ATTEMPT]
            for role in ("head", "worker"):
                name = f"{ray_job['metadata']['name']}-{role}"
                labels = {names.ATTEMPT: attempt, names.JOB_UID: JOB_UID, "ray.io/node-type": role}
                ready = {"type": "Ready", "status": "True"}
                pod = {
                    "metadata": {"name": name, "labels": labels},
                    "status": {"phase": "Running", "conditions": [ready]},
                }
                self.pods.setdefault(name, pod)
            cluster = f"{ray_job['metadata']['name']}-x"
            began = {"startTime": text_of(self.now)}
            if not ray_job.get("status"):
                ray_job["status"] = {"jobDeploymentStatus": "Running", "rayClusterName": cluster, "rayJobInfo": began}

    def remove_going_pods(self) -> None:
        self.pods = {
            name: pod
            for name, pod in self.pods.items()
            if "deletionTimestamp" not in pod["metadata"] and self._owner(pod) in self.ray_jobs
        }

    def end_ray_job(self, status: str, message: str = "") -> None:
        for ray_job in self.live():
            reason = {"FAILED": {"reason": "AppFailed"}}.get(status, {})
            deployment = "Failed" if status == "FAILED" else "Complete"
            ended = {"jobStatus": status, "jobDeploymentStatus": deployment, "message": message, **reason}
            ray_job["status"] = {**(ray_job.get("status") or {}), **ended}
            for pod in self.pods.values():
                if self._owner(pod) == ray_job["metadata"]["name"]:
                    pod["metadata"].setdefault("deletionTimestamp", text_of(self.now))

    def live(self) -> list[dict[str, Any]]:
        """RayJobs that have not ended."""
        return [each for each in self.ray_jobs.values() if not (each.get("status") or {}).get("jobStatus")]

    # The trainer, as the ledger lets it

    def claim(self) -> None:
        running = [pod for name, pod in self.pods.items() if name.endswith("worker")]
        if self.ledger is None or not running:
            return
        attempt = max(int(pod["metadata"]["labels"][names.ATTEMPT]) for pod in running)
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
            own = {"attempt": attempt, "steps": 0, "incarnation": 0, "podUID": "pod"}
            status["charges"].append(own)
        own["incarnation"] += 1
        status |= {"attempt": attempt, "length": status["length"] + 1}
        status.pop("outcome", None)
        self.ledger["status"] = status

    def charge(self, steps: int) -> None:
        if self.ledger is None or "status" not in self.ledger or not self.pods:
            return
        status = self.ledger["status"]
        own = next(charge for charge in status["charges"] if charge["attempt"] == status["attempt"])
        own["steps"] += steps
        through = min(20, status["chargedThrough"] + steps)
        status |= {"chargedThrough": through, "length": status["length"] + 1}
        status["progress"] = {"step": through, "lastUpdateTime": text_of(self.now)}

    def outcome(self, word: str) -> None:
        if self.ledger is None or "status" not in self.ledger:
            return
        status = self.ledger["status"]
        status["outcome"] = word
        if word != "Suspended" and not any(each["final"] for each in status.get("releases", ())):
            charged = sum(charge["steps"] for charge in status["charges"])
            final = {"uri": "s3://m/final", "step": 20, "attempt": status["attempt"], "digest": "d", "final": True}
            status.setdefault("releases", []).append({**final, "statementDigest": "s", "stepsCharged": charged})
        LedgerStatus.model_validate(status, by_alias=True, by_name=False)

    # People

    def suspend(self, value: bool) -> None:
        self.job["spec"]["suspend"] = value

    def _could_still_charge(self, pod: dict[str, Any], number: int) -> bool:
        """Whether it is of such an attempt, and its node is not known to be gone."""
        going = seconds_of(pod["metadata"].get("deletionTimestamp"))
        forgotten = going is not None and self.now >= going + FORGOTTEN_SECONDS
        of = names.attempt_of(pod)
        return of is not None and of <= number and not forgotten

    def _owner(self, pod: dict[str, Any]) -> str:
        return str(pod["metadata"]["name"].rsplit("-", 1)[0])


class Operator:
    """What the real one does with its plan."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wake: float | None = None

    def reconcile(
        self,
        seen: Observed | None = None,
        dies_after: int | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """One pass on what a cache shows, by default the last moment; killed after so many actions (each status write
        is one). What begins goes on at once, on the API server's own answers; `meanwhile` is what others do then.
        """
        world = self.world
        seen = seen or world.pasts[-1]
        planned = plan(seen, world.now, SETTINGS)
        if planned.grave:
            seen = world.observed_again(seen)
            planned = plan(seen, world.now, SETTINGS)
        done = itertools.count()
        while True:
            made = list(world.made)
            for action in planned.actions:
                if next(done) == dies_after:
                    raise Killed
                match action:
                    case Create():
                        world.create(action.manifest)
                    case DeleteRayJob():
                        world.delete_ray_job(action.name, action.uid)
            self.wake = planned.wake
            if any(isinstance(action, Create) and action.kind == "PrivacyLedger" for action in planned.actions):
                if world.ledger is not None and world.ledger.get("status"):
                    self.wake = world.now  # it was there, and claimed: that is looked at anew
                    return
                seen = replace(seen, ledger=copy.deepcopy(world.ledger), kuberay=world.kuberay)
            else:
                if next(done) == dies_after:
                    raise Killed
                status = planned.status.model_dump(by_alias=True, mode="json", exclude_none=True)
                written = (seen.job.get("status") or {}) != status
                if written and seen.job != world.job:
                    return  # the job has changed meanwhile, and is looked at again
                if written:
                    world.job["status"] = status
                if world.made != made:
                    self.wake = world.now  # it has begun: since when is said later
                    return
                if not planned.grave or not written:
                    return
                attempts = planned.status.attempts
                if not attempts or attempts[-1].end_time is not None:
                    self.wake = world.now  # what has ended is looked at anew
                    return
                job = {**seen.job, "status": status}
                seen = replace(seen, job=copy.deepcopy(job))
            meanwhile()
            planned = plan(seen, world.now, SETTINGS)

    def settle(self, passes: int = 12) -> None:
        """Reconcile until nothing changes any more."""
        for _ in range(passes):
            before = self.world.observed()
            self.world.remember()
            self.reconcile()
            if self.world.observed() == before:
                return


def begun(**changes: Any) -> tuple[World, Operator]:
    """A job whose first attempt has a RayJob."""
    world = World.with_job(**changes)
    operator = Operator(world)
    operator.settle()
    return world, operator


def running(**changes: Any) -> tuple[World, Operator]:
    """A job whose first attempt has charged five steps."""
    world, operator = begun(**changes)
    world.start_pods()
    world.claim()
    world.charge(5)
    operator.settle()
    return world, operator


def condition(world: World, kind: str) -> dict[str, Any]:
    return next(each for each in world.status["conditions"] if each["type"] == kind)
