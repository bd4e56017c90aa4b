"""`tensafe run` as a person's shell starts it, on a real Ray cluster: a tiny job, its events, and ways to end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.platform.fixtures.polling import TIMEOUT_SECONDS, Timer, wait_until
from e2e.platform.trainer.rank_harness import MANIFEST, make_model, records
from tensorguard.ledger.contract import LedgerState
from tensorguard.ledger.file import FileLedger
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import LogRecord, RunLogReader, Started, Stepped

CHECKPOINT_STEPS = 10
OVERRIDES = (
    "spec.training.steps=300",
    f"spec.checkpoint.everySteps={CHECKPOINT_STEPS}",
    "spec.checkpoint.keep=2",
    "spec.privacy.noiseMultiplier=4",
    "spec.cluster.workers=1",  # each more costs every start a quarter of a minute
    "spec.dataset.uri=data.jsonl",
)


def write_job(place: Path) -> None:
    make_model(place / "model")
    (place / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records(240)))
    text = MANIFEST.replace("MODEL", str(place / "model")).replace("CHECKPOINTS", str(place / "checkpoints"))
    (place / "job.yaml").write_text(text)


class RunCommand:
    """`tensafe run` in a process group of its own, as a shell starts it."""

    def __init__(self, place: Path, temporary: Path, *, resume: bool) -> None:
        self.output = place / "out"
        self._events = RunLogReader(self.output / RUN_LOG, from_end=True)
        arguments = [part for override in OVERRIDES for part in ("--set", override)]
        self.stderr = (place / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorguard.cli.main", "run", str(place / "job.yaml"), *arguments, "-o", "json"]
            + ["--set", f"spec.checkpoint.uri={place / 'checkpoints'}", "--output-dir", str(self.output)]
            + (["--resume"] if resume else []),
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def wait_for(self, happened: Callable[[list[LogRecord]], bool]) -> list[LogRecord]:
        """Read events until they show what is waited for."""
        events: list[LogRecord] = []
        timer = Timer()
        while not happened(events):
            assert timer.elapsed_with_cpu < TIMEOUT_SECONDS, f"nothing happened: {events[-3:]}"
            assert self.process.poll() is None, self.words()
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                events += self._events.read()
        return events

    def go_on_for(self, steps: int) -> list[LogRecord]:
        """Wait for the next start of the workers, and so many steps."""

        def far(events: list[LogRecord]) -> bool:
            starts = [number for number, event in enumerate(events) if isinstance(event, Started)]
            return bool(starts) and sum(isinstance(event, Stepped) for event in events[starts[-1] :]) >= steps

        return self.wait_for(far)

    def ledger(self) -> LedgerState:
        return FileLedger(self.output).read()

    def kill_rank_0(self) -> None:
        """SIGKILL of the worker that holds the ledger, at a moment that costs steps."""
        kill_rank_0(self.output)

    def kill_driver(self) -> None:
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C, which goes to the whole process group: the exit code, and what came on standard output."""
        os.killpg(self.process.pid, signal.SIGINT)
        out, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, out.decode()

    def words(self) -> str:
        return Path(self.stderr.name).read_text()[-4000:]


def kill_rank_0(run: Path) -> None:
    """SIGKILL of the worker that was last charged, at a moment that costs steps: it was charged beyond a checkpoint.

    Between a checkpoint and the next charge a kill is free. The worker is stopped while that is looked up, and goes on
    if it was such a moment.
    """
    while True:
        # A holder is its machine and process id.
        process = int(FileLedger(run).read().charges[-1].holder.rsplit("/", 1)[1])
        os.kill(process, signal.SIGSTOP)
        while "T (stopped)" not in Path(f"/proc/{process}/status").read_text():
            time.sleep(0.001)  # nobody is told of it: the worker is Ray's child
        if FileLedger(run).read().charged_through % CHECKPOINT_STEPS:
            os.kill(process, signal.SIGKILL)
            return
        os.kill(process, signal.SIGCONT)
        time.sleep(0.05)


def processes_of(temporary: Path) -> list[str]:
    """The command lines of all processes that have to do with a Ray session in `temporary`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and str(temporary) in line:
            found.append(line)
    return found


def assert_nothing_is_left(run: Path, temporary: Path) -> None:
    """Neither the run's working folder nor Ray's, nor a process of Ray's."""
    assert not (run / ".work").exists()
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not processes_of(temporary), failure_message=lambda: "\n".join(processes_of(temporary)))
