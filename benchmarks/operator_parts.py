"""The parts of the operator's benchmark, in the order in which they run. Later parts use the jobs of earlier ones.

The goals are for 1,000 jobs. They are also shown for fewer jobs, where they are easier to reach.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.operator_jobs import job, reference_ray_job
from benchmarks.testbed import REFERENCE, MeasuredOperator, Testbed
from benchmarks.watch_times import WatchTimes, quantile
from tests.support.fakes.simulator import RayJobSimulator
from tests.support.programs.api_server import (
    ApiServer,
    Condition,
    Key,
    Object,
    holds,
    key_of,
    run_concurrently,
    wait_for,
)

PARTS = ("start", "memory", "rate", "burst", "ledger", "idle", "restart", "failover", "kuberay")
_NEED_JOBS = {"ledger", "idle", "restart", "failover"}
FEW = 10
JOBS_A_SECOND, RATE_SECONDS = 5, 20
CHANGES_A_SECOND, CHANGES_SECONDS = 50, 30
IDLE_SECONDS = 60
TIMEOUT_SECONDS = 600
QUIET_SECONDS = 3.0
AFTERMATH_SECONDS = 1.0
"""An object that appears later than this after a kill was not created by the killed operator."""
CREATE_CONCURRENCY = 32

RATE_P99, LEDGER_P99, RESTART, FAILOVER = 1.0, 2.0, 60.0, 20.0
MEMORY_MB = 300.0
KUBERAY_TIMES = 1.3
"""How many times as long as KubeRay's step the operator's may take in the burst."""
STARTS, READY_SECONDS = 5, 3.0
CHARGES = 5


class Unfinished(Exception):
    """A part could not be completed."""


@dataclass(frozen=True)
class Figure:
    """A measured value and its upper limit; `goal` is None where there is no limit."""

    part: str
    what: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.value <= self.goal


class Parts:
    """One run of the benchmark."""

    def __init__(self, testbed: Testbed, server: ApiServer, jobs: int) -> None:
        self._testbed, self._server, self._jobs = testbed, server, jobs
        self._times = WatchTimes()
        self._simulator = RayJobSimulator(server)
        self._operator: MeasuredOperator | None = None
        self.figures: list[Figure] = []
        self.unfinished = ""
        """Why the run stopped early; empty where it did not."""
        self.requests: dict[str, Any] = {}
        """The operator's requests in the burst, by kind: number for each job, and mean duration."""

    async def watch(self) -> None:
        """Record the times of all watch events, and simulate KubeRay, until cancelled."""

        def on_ray_job(event: str, body: Object, now: float) -> None:
            self._times.on_ray_job(event, body, now)
            if body["metadata"]["namespace"] != REFERENCE:
                self._simulator.on_event(event, body)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.watch("TenSafeTrainingJob", self._times.on_job))
            group.create_task(self._server.watch("PrivacyLedger", self._times.on_ledger))
            group.create_task(self._server.watch("RayJob", on_ray_job))
            group.create_task(self._server.watch("RayCluster", self._times.on_ray_cluster, metadata_only=True))
            group.create_task(self._simulator.serve())

    async def run(self, parts: list[str]) -> None:
        if set(parts) != {"kuberay"}:
            self._operator = self._testbed.start_operator()
            await wait_for(self._operator.leads, 60)
        for part in PARTS:
            if part in parts or (part == "burst" and _NEED_JOBS & set(parts)):
                print(f"{part} ...", flush=True)
                try:
                    await getattr(self, f"_{part}")()
                except Unfinished as reason:
                    self.unfinished = f"{part}: {reason}"
                    return

    async def _start(self) -> None:
        """The time from the start of the process until it is ready, several times; its memory without a job."""
        elapsed, cpu = [], []
        for _ in range(STARTS):
            self._leader.stop()
            self._operator = self._testbed.start_operator()
            await self._until("the operator is ready", self._leader.is_ready)
            elapsed.append(time.monotonic() - self._leader.started)
            cpu.append(self._leader.cpu_seconds())
        self._figure("start", "CPU until it is ready", quantile(cpu, 0.5), "s")
        self._figure("start", f"process to ready, median of {STARTS}", quantile(elapsed, 0.5), "s", READY_SECONDS)
        self._figure("start", "process to ready, longest", max(elapsed), "s")
        await self._until("the operator leads", self._leader.leads)
        await self._settled()
        self._figure("start", "resident without a job", self._leader.resident_mb(), "MB")

    async def _memory(self) -> None:
        """The operator's memory while ten jobs run, and after their ledgers were charged some more times."""
        await self._apply("few", FEW)
        await self._run_all()
        self._figure("memory", f"resident with {FEW} jobs", self._leader.resident_mb(), "MB", MEMORY_MB)
        for _ in range(CHARGES):
            await run_concurrently(FEW, [partial(each.charge, 1) for each in self._simulator.trainers.values()])
            await self._settled()
        what = f"resident after {CHARGES} more charges of each"
        self._figure("memory", what, self._leader.resident_mb(), "MB", MEMORY_MB)
        self._figure("memory", "resident at its highest", self._leader.peak_mb(), "MB")

    async def _rate(self) -> None:
        """Jobs that are applied at a constant rate."""
        count = min(self._jobs, JOBS_A_SECOND * RATE_SECONDS)
        started, keys = time.monotonic(), []
        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / JOBS_A_SECOND - time.monotonic()))
            keys += await self._apply("rate", 1, first=number, wait=False)
        await self._until("every job has a RayJob", lambda: self._times.all_have_ray_jobs(keys))
        self._record_delays("rate", f"job to RayJob at {JOBS_A_SECOND} a second", keys, RATE_P99)
        await self._run_all()

    async def _burst(self) -> None:
        """All jobs applied at once."""
        log, cpu = self._testbed.request_log(), self._leader.cpu_seconds()
        keys = await self._apply("burst", self._jobs)
        self._figure(
            "burst", "the operator's CPU for a job", 1e3 * (self._leader.cpu_seconds() - cpu) / len(keys), "ms"
        )
        self._record_delays("burst", f"job to RayJob, {self._jobs} at once", keys)
        self.requests = log.summary(len(keys))
        requests = sum(each["for_a_job"] for each in self.requests.values())
        self._figure("burst", "requests of the operator for a job", requests, "")
        await self._run_all()
        count = len(self._times.jobs)
        self._figure("burst", f"resident with {count} jobs", self._leader.resident_mb(), "MB", MEMORY_MB)
        self._figure("burst", "resident at its highest", self._leader.peak_mb(), "MB")

    async def _ledger(self) -> None:
        """The delay of the jobs' statuses while trainers charge their ledgers."""
        trainers = itertools.cycle(self._simulator.trainers.values())
        self._times.delays.clear()
        started, count = time.monotonic(), CHANGES_A_SECOND * CHANGES_SECONDS
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, started + number / CHANGES_A_SECOND - time.monotonic()))
                group.create_task(next(trainers).charge(1))
        elapsed = time.monotonic() - started
        await self._settled()
        self._figure("ledger", "charges a second", count / elapsed, "1/s")
        what = f"charge to status at {CHANGES_A_SECOND} a second"
        self._figure("ledger", f"{what}, p50", quantile(self._times.delays, 0.5), "s")
        self._figure("ledger", f"{what}, p99", quantile(self._times.delays, 0.99), "s", LEDGER_P99)

    async def _idle(self) -> None:
        """Nothing changes, so the operator must write nothing."""
        await self._settled()
        log, cpu = self._testbed.request_log(), self._leader.cpu_seconds()
        await asyncio.sleep(IDLE_SECONDS)
        self._figure("idle", f"writes in {IDLE_SECONDS} s, except to the Lease", log.writes(), "", 0.0)
        self._figure("idle", "CPU", 100 * (self._leader.cpu_seconds() - cpu) / IDLE_SECONDS, "% of a core")

    async def _restart(self) -> None:
        """The operator is stopped and started again. Every tenth ledger is charged meanwhile, and no spec changes."""
        generations = {key: set(found) for key, found in self._times.generations.items()}
        self._leader.stop()
        trainers = list(self._simulator.trainers.values())
        await run_concurrently(8, [partial(trainer.charge, 1) for trainer in trainers[::10]])
        log = self._testbed.request_log()
        self._operator = self._testbed.start_operator()
        wanted = {key: trainer.steps for key, trainer in self._simulator.trainers.items()}

        async def converged() -> bool:
            if any(self._times.pending.values()):
                return False
            await asyncio.sleep(0.5)  # the metrics include a job only once it was reconciled
            shown = await self._leader.steps_charged()
            return all(shown.get(key) == steps for key, steps in wanted.items())

        await self._until("every status is right again", converged)
        elapsed = time.monotonic() - self._leader.started
        self._figure("restart", f"converged with {len(wanted)} jobs", elapsed, "s", RESTART)
        await self._settled()
        writes = log.writes() - len(trainers[::10])
        self._figure("restart", "writes beyond the statuses that are due", writes, "", 0.0)
        again = sum(found != generations[key] for key, found in self._times.generations.items())
        self._figure("restart", "specs written", again, "", 0.0)

    async def _failover(self) -> None:
        """The leader is killed during a burst. The other replica takes over, and creates nothing twice."""
        second = self._testbed.start_operator()
        await self._until("a second operator answers", second.metrics)
        log = self._testbed.request_log()
        keys = await self._apply("failover", max(10, self._jobs // 10), wait=False)
        before = len(self._times.ray_jobs)
        await self._until(
            "a third of the jobs have RayJobs", lambda: len(self._times.ray_jobs) >= before + len(keys) // 3
        )
        self._leader.stop(signal.SIGKILL)
        killed = time.monotonic()
        self._operator = second
        await asyncio.sleep(AFTERMATH_SECONDS)
        keys += await self._apply("failover", 1, first=len(keys), wait=False)
        await self._until("every job has a RayJob", lambda: self._times.all_have_ray_jobs(keys))
        delays = [when - killed for key in keys for when in self._times.ray_jobs.get(key, ())]
        after = [seconds for seconds in delays if seconds > AFTERMATH_SECONDS] or [float("inf")]
        self._figure("failover", "kill -9 to the new leader's first RayJob", min(after), "s", FAILOVER)
        self._figure("failover", "kill -9 to the last RayJob", max(after), "s")
        await self._settled()
        created = Counter(
            (each.resource, each.name) for each in log.requests() if (each.verb, each.code) == ("create", 201)
        )
        twice = sum(count > 1 for count in created.values()) + sum(len(self._times.ray_jobs[key]) != 1 for key in keys)
        self._figure("failover", "objects created twice", twice, "", 0.0)

    async def _kuberay(self) -> None:
        """KubeRay's operator alone, from a RayJob to its RayCluster, with the same RayJobs."""
        if self._operator is not None:
            self._operator.stop()
            self._operator = None
        process, ready = self._testbed.start_kuberay()
        await self._until("KubeRay is ready", ready)
        documents = [reference_ray_job(number) for number in range(self._jobs)]
        await run_concurrently(CREATE_CONCURRENCY, [partial(self._server.create, document) for document in documents])
        keys = [(REFERENCE, document["metadata"]["name"].removesuffix("-a1")) for document in documents]
        await self._until("every RayJob has a RayCluster", lambda: all(key in self._times.ray_clusters for key in keys))
        elapsed = [self._times.ray_clusters.get(key, float("inf")) - self._times.ray_jobs[key][0] for key in keys]
        p50, p99 = quantile(elapsed, 0.5), quantile(elapsed, 0.99)
        self._figure("kuberay", f"RayJob to RayCluster, {self._jobs} at once, p50", p50, "s")
        self._figure("kuberay", f"RayJob to RayCluster, {self._jobs} at once, p99", p99, "s")
        self._figure("kuberay", "resident", process.resident_mb(), "MB")
        process.stop(signal.SIGKILL)
        for number, figure in enumerate(self.figures):
            if figure.part == "burst" and figure.what.endswith("at once, p99"):
                self.figures[number] = Figure(figure.part, figure.what, figure.value, figure.unit, KUBERAY_TIMES * p99)

    @property
    def _leader(self) -> MeasuredOperator:
        assert self._operator is not None
        return self._operator

    async def _apply(self, namespace: str, count: int, *, first: int = 0, wait: bool = True) -> list[Key]:
        """Apply jobs, and with `wait` wait until each has its RayJob."""
        documents = [job(namespace, first + number) for number in range(count)]
        await run_concurrently(CREATE_CONCURRENCY, [partial(self._server.create, document) for document in documents])
        keys = [key_of(document) for document in documents]
        if wait:
            await self._until("every job has a RayJob", lambda: self._times.all_have_ray_jobs(keys))
        return keys

    async def _run_all(self) -> None:
        """Run every job that has a RayJob, and wait until the operator has reported that and writes nothing more."""
        await self._until("KubeRay has answered", lambda: self._simulator.accepted >= len(self._times.ray_jobs))
        await self._simulator.run()
        await self._until(
            "every job runs", lambda: all(self._times.phases[key] == "Running" for key in self._simulator.trainers)
        )
        await self._settled()

    async def _settled(self) -> None:
        """Wait until no status is outdated and the operator has written nothing for a while."""

        async def quiet() -> bool:
            log = self._testbed.request_log()
            await asyncio.sleep(QUIET_SECONDS)
            return not log.writes() and not any(self._times.pending.values())

        await self._until("the operator writes nothing more", quiet)

    async def _until(self, what: str, condition: Condition, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until a condition holds.

        Raises:
            Unfinished: it does not hold in time, or the operator has exited.
        """

        async def done() -> bool:
            return await holds(condition) or not self._alive

        if not await wait_for(done, seconds):
            raise Unfinished(f"after {seconds:.0f} s this does not hold: {what}")
        if not self._alive:
            raise Unfinished(f"the operator exited unexpectedly before this held: {what}")

    @property
    def _alive(self) -> bool:
        return self._operator is None or self._operator.alive

    def _record_delays(self, part: str, what: str, keys: list[Key], goal: float | None = None) -> None:
        """Record the time from each job to its RayJob; a RayJob that never appeared counts as infinite."""
        delays = {key: self._times.ray_jobs[key][0] for key in keys if key in self._times.ray_jobs}
        elapsed = [delays.get(key, float("inf")) - self._times.jobs[key] for key in keys]
        self._figure(part, f"{what}, p50", quantile(elapsed, 0.5), "s")
        self._figure(part, f"{what}, p99", quantile(elapsed, 0.99), "s", goal)

    def _figure(self, part: str, what: str, value: float, unit: str, goal: float | None = None) -> None:
        self.figures.append(Figure(part, what, value, unit, goal))
