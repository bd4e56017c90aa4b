"""kill -9 at every boundary and at random moments: ε never falls, and no more is revealed than was charged.

The kills hit one job after the other, on one rank or on both. After each kill the worker group is started again: as Ray
would (the same attempt), or as a user would (a new attempt) if Ray's restart would make no progress. The first kills
cover every named point. Further kills, whose number TENSAFE_KILLS sets, are drawn at random.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensafe_api.statement.contents import recompute_epsilon
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, TrainerState
from tensorguard.verification.checkpoint import verify_checkpoint
from tensorguard.verification.ledgers import read_file_ledger
from tests.support.trainer.fault_injection import POINTS, POINTS_ON_EVERY_RANK, Instrument, Kill, TearLedgerWrite
from tests.support.trainer.rank_harness import Job, join

KILLS = int(os.environ.get("TENSAFE_KILLS", "20"))
JOB = (
    "spec.training.steps=24",
    "spec.checkpoint.everySteps=3",
    "spec.checkpoint.keep=2",
    "spec.privacy.noiseMultiplier=3",
    "spec.privacy.targetEpsilon=50",
)


@dataclass(frozen=True)
class AtTime:
    """A kill of these ranks by the test after some seconds. Each try draws them again, since a job may end earlier."""

    generator: random.Random
    ranks: tuple[int, ...]

    def seconds(self) -> float:
        return self.generator.uniform(0.1, 3.0)


def kills(generator: random.Random) -> Iterator[Instrument | AtTime]:
    """Every point once, on one rank or on both, before or after; an incomplete ledger entry; then random kills."""
    for point in POINTS:
        yield at_point(point, generator)
    yield during_ledger_write(generator)
    for _ in range(4):
        yield at_time(generator)
    while True:
        kind = generator.choice([at_time, during_ledger_write, None, None])
        yield kind(generator) if kind else at_point(generator.choice(list(POINTS)), generator)


def at_point(point: str, generator: random.Random) -> Kill:
    rank = generator.randint(0, 1) if point in POINTS_ON_EVERY_RANK else 0
    nth = generator.randint(1, 4) if point in (*POINTS_ON_EVERY_RANK, "charge", "sync", "replace") else 1
    return Kill(point, generator.choice(["before", "after"]), rank, nth, all_ranks=generator.random() < 0.5)


def during_ledger_write(generator: random.Random) -> TearLedgerWrite:
    return TearLedgerWrite(generator.randint(1, 6), all_ranks=generator.random() < 0.5)


def at_time(generator: random.Random) -> AtTime:
    return AtTime(generator, generator.choice([(0,), (1,), (0, 1)]))


class KilledJob:
    """One job that is killed repeatedly, and the checks after each kill."""

    def __init__(self, directory: Path) -> None:
        self.job = Job.make(directory, *JOB)
        self._charged, self._epsilon, self._published = 0, 0.0, 0
        self._last_start: int | None = None

    def run_until_killed(self, kill: Instrument | AtTime) -> bool:
        """Run one more incarnation; return whether it was killed. The job may also end before the kill."""
        published = self.job.ledger().checkpoints
        step = published[-1].step if published else 0
        start = self.job.start if step == self._last_start or not self.job.attempt else self.job.restart
        self._last_start = step
        if isinstance(kill, AtTime):
            processes = start()
            processes[kill.ranks[0]].join(kill.seconds())
            for rank in kill.ranks:
                processes[rank].kill()
            codes = join(processes, timeout=20)  # a rank that waits for a killed one is ended, as Ray would do
        else:
            codes = join(start(kill))
            assert None not in codes, f"{kill} left a rank hanging: {self.job.errors()}"
        self._check()
        return codes != [0, 0]

    def finish(self) -> None:
        """Run the job to its end, if it has not ended, and check its result."""
        if self.job.ledger().outcome != "Completed":
            assert join(self.job.start()) == [0, 0], self.job.errors()
            self._check()
        assert self.job.ended().reason == "Completed", self.job.ended()
        ledger, privacy = self.job.ledger(), self.job.status().privacy
        assert privacy.steps_charged == ledger.steps_charged
        final = next(each for each in reversed(ledger.checkpoints) if each.final)
        statement = json.loads(self.job.store().read("final", final.digest)["statement.json"])
        assert statement["spent"]["stepsCharged"] == ledger.steps_charged
        assert recompute_epsilon(statement) == statement["spent"]["epsilon"] == privacy.epsilon_spent
        verify_checkpoint(final.uri, find_ledger=lambda _: read_file_ledger(self.job.directory))

    def _check(self) -> None:
        ledger = self.job.ledger()
        epsilon = self.job.plan.epsilon(ledger.steps_charged)
        assert ledger.steps_charged >= self._charged
        assert epsilon >= self._epsilon
        assert len(ledger.checkpoints) >= self._published
        self._charged, self._epsilon, self._published = ledger.steps_charged, epsilon, len(ledger.checkpoints)
        assert max(self.job.revealed()) <= ledger.steps_charged

        store = self.job.store()
        recorded = {each.uri.rsplit("/", 1)[1]: each.digest for each in ledger.checkpoints}
        for name in store.names():  # each checkpoint is complete, and its digest is recorded
            state = TrainerState.parse(store.read(name, recorded.get(name))[TRAINER_STATE])
            assert state.step <= ledger.steps_charged
            assert state.ledger_length <= ledger.length


@pytest.mark.slow
def test_training_resumes_after_every_kill_and_charges_never_fall(tmp_path: Path) -> None:
    planned = kills(random.Random(20))
    kills_done = jobs = 0
    killed = KilledJob(tmp_path / "run-0")
    while kills_done < KILLS:
        kill = next(planned)
        while not killed.run_until_killed(kill):
            killed.finish()
            jobs += 1
            killed = KilledJob(tmp_path / f"run-{jobs}")
        kills_done += 1
    killed.finish()
