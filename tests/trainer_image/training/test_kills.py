"""kill -9 at every boundary and at random moments: ε never falls, and no more is ever revealed than was charged.

The kills hit one job after the other, on one rank or on both, and each time the group is started again: as Ray would
(the same attempt) or, where that would be a restart without progress, as a person would (a new attempt). The first
kills visit every named point; those beyond, of which TENSAFE_KILLS asks for more, are drawn at random.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.platform.trainer.fault_injection import POINTS, POINTS_ON_EVERY_RANK, Instrument, Kill, TearLedgerWrite
from e2e.platform.trainer.rank_harness import Job, join
from tensafe_api.statement import recompute_epsilon
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, TrainerState

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
    """The test itself kills these ranks after some seconds, drawn anew at each try: a job may be over sooner."""

    generator: random.Random
    ranks: tuple[int, ...]

    def seconds(self) -> float:
        return self.generator.uniform(0.1, 3.0)


def kills(generator: random.Random) -> Iterator[Instrument | AtTime]:
    """Every point once, on some rank or on both, before or after; a torn entry; some moments; then whatever comes."""
    for point in POINTS:
        yield at(point, generator)
    yield torn(generator)
    for _ in range(4):
        yield at_time(generator)
    while True:
        kind = generator.choice([at_time, torn, None, None])
        yield kind(generator) if kind else at(generator.choice(list(POINTS)), generator)


def at(point: str, generator: random.Random) -> Kill:
    rank = generator.randint(0, 1) if point in POINTS_ON_EVERY_RANK else 0
    nth = generator.randint(1, 4) if point in (*POINTS_ON_EVERY_RANK, "charge", "sync", "replace") else 1
    return Kill(point, generator.choice(["before", "after"]), rank, nth, all_ranks=generator.random() < 0.5)


def torn(generator: random.Random) -> TearLedgerWrite:
    return TearLedgerWrite(generator.randint(1, 6), all_ranks=generator.random() < 0.5)


def at_time(generator: random.Random) -> AtTime:
    return AtTime(generator, generator.choice([(0,), (1,), (0, 1)]))


class Story:
    """One job under fire, and what must hold after each kill."""

    def __init__(self, directory: Path) -> None:
        self.job = Job.make(directory, *JOB)
        self._charged, self._epsilon, self._releases = 0, 0.0, 0
        self._began_at: int | None = None

    def suffer(self, kill: Instrument | AtTime) -> bool:
        """One more incarnation; whether it died. It may also reach the job's end before it comes to the kill."""
        releases = self.job.ledger().checkpoints
        step = releases[-1].step if releases else 0
        go_on = self.job.start if step == self._began_at or not self.job.attempt else self.job.restart
        self._began_at = step
        if isinstance(kill, AtTime):
            processes = go_on()
            processes[kill.ranks[0]].join(kill.seconds())
            for rank in kill.ranks:
                processes[rank].kill()
            codes = join(processes, timeout=20)  # one that waits for the dead to come up is ended as Ray would
        else:
            codes = join(go_on(kill))
            assert None not in codes, f"{kill} left a rank hanging: {self.job.errors()}"
        self._check()
        return codes != [0, 0]

    def finish(self) -> None:
        """Let it run to its end, if it has not come there, and look at what it leaves."""
        if self.job.ledger().outcome != "Completed":
            assert join(self.job.start()) == [0, 0], self.job.errors()
            self._check()
        assert self.job.ended().reason == "Completed", self.job.ended()
        ledger, privacy = self.job.ledger(), self.job.status().privacy
        assert privacy.steps_charged == ledger.steps_charged
        final = next(release for release in reversed(ledger.checkpoints) if release.final)
        statement = json.loads(self.job.store().read("final", final.digest)["statement.json"])
        assert statement["spent"]["stepsCharged"] == ledger.steps_charged
        assert recompute_epsilon(statement) == statement["spent"]["epsilon"] == privacy.epsilon_spent

    def _check(self) -> None:
        ledger = self.job.ledger()
        epsilon = self.job.plan.epsilon(ledger.steps_charged)
        assert ledger.steps_charged >= self._charged
        assert epsilon >= self._epsilon
        assert len(ledger.checkpoints) >= self._releases
        self._charged, self._epsilon, self._releases = ledger.steps_charged, epsilon, len(ledger.checkpoints)
        assert max(self.job.revealed()) <= ledger.steps_charged

        store = self.job.store()
        recorded = {release.uri.rsplit("/", 1)[1]: release.digest for release in ledger.checkpoints}
        for name in store.names():  # whole or not there, and recorded as it is
            place = TrainerState.parse(store.read(name, recorded.get(name))[TRAINER_STATE])
            assert place.step <= ledger.steps_charged
            assert place.ledger_length <= ledger.length


def test_training_resumes_after_every_kill_and_charges_never_fall(tmp_path: Path) -> None:
    planned = kills(random.Random(20))
    died = jobs = 0
    story = Story(tmp_path / "run-0")
    while died < KILLS:
        kill = next(planned)
        while not story.suffer(kill):
            story.finish()
            jobs += 1
            story = Story(tmp_path / f"run-{jobs}")
        died += 1
    story.finish()
