"""The parts of the operator's benchmark, in the order in which they run: each leaves its jobs for the next ones.

Goals are for 1,000 jobs; with fewer the same goals are shown, and are easier.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.apiserver import Happened, Object, Server, each, key_of, until
from benchmarks.bed import REFERENCE, Bed, Operator
from benchmarks.fake_kuberay import FakeKubeRay, Key
from benchmarks.operator_jobs import job, reference
from benchmarks.sightings import Sightings, quantile

PARTS = ("memory", "rate", "burst", "ledger", "idle", "restart", "failover", "kuberay")
_NEED_JOBS = {"ledger", "idle", "restart", "failover"}
FEW = 10
JOBS_A_SECOND, RATE_SECONDS = 5, 20
CHANGES_A_SECOND, CHANGES_SECONDS = 50, 30
IDLE_SECONDS = 60
PATIENCE_SECONDS = 600
QUIET_SECONDS = 3.0
LATE_SECONDS = 1.0
"""What comes so long after a kill is no more of the one that was killed."""
CREATING_AT_ONCE = 32

RATE_P99, LEDGER_P99, RESTART, FAILOVER = 5.0, 2.0, 20.0, 20.0
FEW_MB, MANY_MB = 180.0, 250.0


class Unfinished(Exception):
    """A part could not be measured to its end."""


@dataclass(frozen=True)
class Figure:
    """What was measured, and what it must not be above; None: nothing is asked of it."""

    part: str
    what: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.value <= self.goal


class Parts:
    """One run."""

    def __init__(self, bed: Bed, server: Server, jobs: int) -> None:
        self._bed, self._server, self._jobs = bed, server, jobs
        self._seen = Sightings()
        self._fake = FakeKubeRay(server)
        self._operator: Operator | None = None
        self.figures: list[Figure] = []
        self.unfinished = ""
        """Why the run ended before its end."""
        self.requests: dict[str, Any] = {}
        """What the operator asked of the API server in the burst: how often for a job, and how long an answer took."""

    async def watch(self) -> None:
        """Look at everything until cancelled, and play KubeRay's part."""

        def ray_job(event: str, body: Object, now: float) -> None:
            self._seen.ray_job(event, body, now)
            if body["metadata"]["namespace"] != REFERENCE:
                self._fake.heard(event, body)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.watch("TenSafeTrainingJob", self._seen.job))
            group.create_task(self._server.watch("PrivacyLedger", self._seen.ledger))
            group.create_task(self._server.watch("RayJob", ray_job))
            group.create_task(self._server.watch("RayCluster", self._seen.ray_cluster, bare=True))
            group.create_task(self._fake.serve())

    async def run(self, parts: list[str]) -> None:
        if set(parts) != {"kuberay"}:
            self._operator = self._bed.operator()
            await until(self._operator.leads, 60)
        for part in PARTS:
            if part in parts or (part == "burst" and _NEED_JOBS & set(parts)):
                print(f"{part} ...", flush=True)
                try:
                    await getattr(self, f"_{part}")()
                except Unfinished as reason:
                    self.unfinished = f"{part}: {reason}"
                    return

    async def _memory(self) -> None:
        """What the process holds when ten jobs run."""
        await self._apply("few", FEW)
        await self._run_all()
        self._figure("memory", f"resident with {FEW} jobs", self._leader.resident_mb(), "MB", FEW_MB)

    async def _rate(self) -> None:
        """Jobs that come one after the other."""
        count = min(self._jobs, JOBS_A_SECOND * RATE_SECONDS)
        began, keys = time.monotonic(), []
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / JOBS_A_SECOND - time.monotonic()))
            keys += await self._apply("rate", 1, first=number, wait=False)
        await self._until("every job has a RayJob", lambda: self._seen.begun(keys))
        self._steps("rate", f"job to RayJob at {JOBS_A_SECOND} a second", keys, RATE_P99)
        await self._run_all()

    async def _burst(self) -> None:
        """All jobs at once."""
        account, cpu = self._bed.account(), self._leader.cpu_seconds()
        keys = await self._apply("burst", self._jobs)
        self._figure(
            "burst", "the operator's CPU for a job", 1e3 * (self._leader.cpu_seconds() - cpu) / len(keys), "ms"
        )
        self._steps("burst", f"job to RayJob, {self._jobs} at once", keys)
        self.requests = account.summary(len(keys))
        asked = sum(self.requests[what]["for_a_job"] for what in self.requests)
        self._figure("burst", "requests of the operator for a job", asked, "")
        await self._run_all()
        count = len(self._seen.jobs)
        self._figure("burst", f"resident with {count} jobs", self._leader.resident_mb(), "MB", MANY_MB)
        self._figure("burst", "resident at its highest", self._leader.peak_mb(), "MB")

    async def _ledger(self) -> None:
        """Trainers that charge: how far the jobs' statuses are behind."""
        trainers = itertools.cycle(self._fake.trainers.values())
        self._seen.behind.clear()
        began, count = time.monotonic(), CHANGES_A_SECOND * CHANGES_SECONDS
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / CHANGES_A_SECOND - time.monotonic()))
                group.create_task(next(trainers).charge(1))
        took = time.monotonic() - began
        await self._settled()
        self._figure("ledger", "charges a second", count / took, "1/s")
        what = f"charge to status at {CHANGES_A_SECOND} a second"
        self._figure("ledger", f"{what}, p50", quantile(self._seen.behind, 0.5), "s")
        self._figure("ledger", f"{what}, p99", quantile(self._seen.behind, 0.99), "s", LEDGER_P99)

    async def _idle(self) -> None:
        """Nothing happens: nothing is written."""
        await self._settled()
        account, cpu = self._bed.account(), self._leader.cpu_seconds()
        await asyncio.sleep(IDLE_SECONDS)
        self._figure("idle", f"writes in {IDLE_SECONDS} s, the Lease aside", account.writes(), "", 0.0)
        self._figure("idle", "CPU", 100 * (self._leader.cpu_seconds() - cpu) / IDLE_SECONDS, "% of a core")

    async def _restart(self) -> None:
        """An operator that is stopped and started: every tenth ledger is charged meanwhile, and no spec is touched."""
        generations = {key: set(found) for key, found in self._seen.generations.items()}
        self._leader.end()
        trainers = list(self._fake.trainers.values())
        await each(8, [partial(trainer.charge, 1) for trainer in trainers[::10]])
        account = self._bed.account()
        self._operator = self._bed.operator()
        wanted = {key: trainer.steps for key, trainer in self._fake.trainers.items()}

        async def converged() -> bool:
            if any(self._seen.owed.values()):
                return False
            await asyncio.sleep(0.5)  # it takes the operator a while to tell of all jobs
            shown = await self._leader.charged()
            return all(shown.get(key) == steps for key, steps in wanted.items())

        await self._until("every status is right again", converged)
        took = time.monotonic() - self._leader.began
        self._figure("restart", f"converged with {len(wanted)} jobs", took, "s", RESTART)
        await self._settled()
        writes = account.writes() - len(trainers[::10])
        self._figure("restart", "writes beyond the statuses that are due", writes, "", 0.0)
        again = sum(found != generations[key] for key, found in self._seen.generations.items())
        self._figure("restart", "specs written", again, "", 0.0)

    async def _failover(self) -> None:
        """The leader is killed amid a burst: the other goes on, and makes nothing twice."""
        second = self._bed.operator()
        await self._until("a second operator stands by", second.metrics)
        account = self._bed.account()
        keys = await self._apply("failover", max(10, self._jobs // 10), wait=False)
        before = len(self._seen.ray_jobs)
        await self._until("a third has begun", lambda: len(self._seen.ray_jobs) >= before + len(keys) // 3)
        self._leader.end(signal.SIGKILL)
        killed = time.monotonic()
        self._operator = second
        await asyncio.sleep(LATE_SECONDS)
        keys += await self._apply("failover", 1, first=len(keys), wait=False)
        await self._until("every job has a RayJob", lambda: self._seen.begun(keys))
        came = [when - killed for key in keys for when in self._seen.ray_jobs.get(key, ())]
        after = [seconds for seconds in came if seconds > LATE_SECONDS] or [float("inf")]
        self._figure("failover", "kill -9 to the new leader's first RayJob", min(after), "s", FAILOVER)
        self._figure("failover", "kill -9 to the last RayJob", max(after), "s")
        await self._settled()
        made = Counter(
            (asked.resource, asked.name) for asked in account.asked() if (asked.verb, asked.code) == ("create", 201)
        )
        twice = sum(count > 1 for count in made.values()) + sum(len(self._seen.ray_jobs[key]) != 1 for key in keys)
        self._figure("failover", "objects made twice", twice, "", 0.0)

    async def _kuberay(self) -> None:
        """KubeRay's own step, from a RayJob to its RayCluster, with the same RayJobs and nobody else at work."""
        if self._operator is not None:
            self._operator.end()
            self._operator = None
        process, ready = self._bed.kuberay()
        await self._until("KubeRay is ready", ready)
        documents = [reference(number) for number in range(self._jobs)]
        await each(CREATING_AT_ONCE, [partial(self._server.create, document) for document in documents])
        keys = [(REFERENCE, document["metadata"]["name"].removesuffix("-a1")) for document in documents]
        await self._until("every RayJob has a RayCluster", lambda: all(key in self._seen.ray_clusters for key in keys))
        took = [self._seen.ray_clusters.get(key, float("inf")) - self._seen.ray_jobs[key][0] for key in keys]
        p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
        self._figure("kuberay", f"RayJob to RayCluster, {self._jobs} at once, p50", p50, "s")
        self._figure("kuberay", f"RayJob to RayCluster, {self._jobs} at once, p99", p99, "s")
        self._figure("kuberay", "resident", process.resident_mb(), "MB")
        process.end(signal.SIGKILL)
        for number, figure in enumerate(self.figures):
            if figure.part == "burst" and figure.what.endswith("at once, p99"):
                self.figures[number] = Figure(figure.part, figure.what, figure.value, figure.unit, p99)

    @property
    def _leader(self) -> Operator:
        assert self._operator is not None
        return self._operator

    async def _apply(self, namespace: str, count: int, *, first: int = 0, wait: bool = True) -> list[Key]:
        """Make jobs, and wait until each has its RayJob."""
        documents = [job(namespace, first + number) for number in range(count)]
        await each(CREATING_AT_ONCE, [partial(self._server.create, document) for document in documents])
        keys = [key_of(document) for document in documents]
        if wait:
            await self._until("every job has a RayJob", lambda: self._seen.begun(keys))
        return keys

    async def _run_all(self) -> None:
        """Let every job run that has begun, and wait until the operator has said so and writes nothing more."""
        await self._until("KubeRay has answered", lambda: self._fake.answered >= len(self._seen.ray_jobs))
        await self._fake.run()
        await self._until(
            "every job runs", lambda: all(self._seen.phases[key] == "Running" for key in self._fake.trainers)
        )
        await self._settled()

    async def _settled(self) -> None:
        """Wait until the operator owes nothing, and has written nothing for a while."""

        async def quiet() -> bool:
            account = self._bed.account()
            await asyncio.sleep(QUIET_SECONDS)
            return not account.writes() and not any(self._seen.owed.values())

        await self._until("the operator writes nothing more", quiet)

    async def _until(self, what: str, happened: Happened, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until something has happened.

        Raises:
            Unfinished: where it has not after so long, or the operator has ended meanwhile.
        """

        async def settled() -> bool:
            found = happened()
            return bool(await found if inspect.isawaitable(found) else found) or not self._alive

        if not await until(settled, seconds):
            raise Unfinished(f"waited {seconds:.0f} s in vain until {what}")
        if not self._alive:
            raise Unfinished(f"the operator has ended by itself, before {what}")

    @property
    def _alive(self) -> bool:
        return self._operator is None or self._operator.alive

    def _steps(self, part: str, what: str, keys: list[Key], goal: float | None = None) -> None:
        """How long jobs took to their RayJobs; one that never came took for ever."""
        came = {key: self._seen.ray_jobs[key][0] for key in keys if key in self._seen.ray_jobs}
        took = [came.get(key, float("inf")) - self._seen.jobs[key] for key in keys]
        self._figure(part, f"{what}, p50", quantile(took, 0.5), "s")
        self._figure(part, f"{what}, p99", quantile(took, 0.99), "s", goal)

    def _figure(self, part: str, what: str, value: float, unit: str, goal: float | None = None) -> None:
        self.figures.append(Figure(part, what, value, unit, goal))
