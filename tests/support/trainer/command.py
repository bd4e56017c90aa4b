"""Runs `tensafe run` as a shell would, on a real Ray cluster, with a tiny job, and interrupts or kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tensorguard.ledger.contract import LedgerState
from tensorguard.ledger.file import FileLedger
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import LogRecord, RunLogReader, Started, Stepped
from tests.support.polling import TIMEOUT_SECONDS, Timer, wait_until
from tests.support.trainer.rank_harness import MANIFEST, make_model, records

CHECKPOINT_STEPS = 10
OVERRIDES = (
    "spec.training.steps=300",
    f"spec.checkpoint.everySteps={CHECKPOINT_STEPS}",
    "spec.checkpoint.keep=2",
    "spec.privacy.noiseMultiplier=4",
    "spec.cluster.workers=1",  # each further worker makes every start 15 seconds slower
    "spec.dataset.uri=data.jsonl",
)


def write_job(folder: Path) -> None:
    make_model(folder / "model")
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records(240)))
    text = MANIFEST.replace("MODEL", str(folder / "model")).replace("CHECKPOINTS", str(folder / "checkpoints"))
    (folder / "job.yaml").write_text(text)


class RunCommand:
    """A process of `tensafe run` in its own process group, as a shell starts it."""

    def __init__(self, folder: Path, temporary: Path, *, resume: bool) -> None:
        self.output = folder / "out"
        self._log = RunLogReader(self.output / RUN_LOG, from_end=True)
        arguments = [part for override in OVERRIDES for part in ("--set", override)]
        self.stderr = (folder / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorguard.cli.main", "run", str(folder / "job.yaml"), *arguments, "-o", "json"]
            + ["--set", f"spec.checkpoint.uri={folder / 'checkpoints'}", "--output-dir", str(self.output)]
            + (["--resume"] if resume else []),
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def wait_for(self, happened: Callable[[list[LogRecord]], bool]) -> list[LogRecord]:
        """Read log records until `happened` is true of them."""
        records: list[LogRecord] = []
        timer = Timer()
        while not happened(records):
            assert timer.elapsed_with_cpu < TIMEOUT_SECONDS, f"nothing happened: {records[-3:]}"
            assert self.process.poll() is None, self.stderr_text()
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                records += self._log.read()
        return records

    def wait_for_steps(self, steps: int) -> list[LogRecord]:
        """Wait for the next start of the workers and for `steps` steps after it."""

        def stepped(records: list[LogRecord]) -> bool:
            starts = [number for number, record in enumerate(records) if isinstance(record, Started)]
            return bool(starts) and sum(isinstance(record, Stepped) for record in records[starts[-1] :]) >= steps

        return self.wait_for(stepped)

    def ledger(self) -> LedgerState:
        return FileLedger(self.output).read()

    def kill_rank_0(self) -> None:
        """Send SIGKILL to the worker that holds the ledger, when the kill loses charged steps."""
        kill_rank_0(self.output)

    def kill_driver(self) -> None:
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> tuple[int, str]:
        """Send Ctrl-C to the whole process group. Returns the exit code and the standard output."""
        os.killpg(self.process.pid, signal.SIGINT)
        out, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, out.decode()

    def stderr_text(self) -> str:
        return Path(self.stderr.name).read_text()[-4000:]


def kill_rank_0(run: Path) -> None:
    """Send SIGKILL to the worker that was last charged, when it was charged beyond its last checkpoint.

    A kill between a checkpoint and the next charge loses no step. So the worker is stopped while the ledger is read,
    and continues if the kill would lose nothing.
    """
    while True:
        # A holder is "<machine>/<process id>".
        process = int(FileLedger(run).read().charges[-1].holder.rsplit("/", 1)[1])
        os.kill(process, signal.SIGSTOP)
        while "T (stopped)" not in Path(f"/proc/{process}/status").read_text():
            time.sleep(0.001)  # this process cannot wait for the signal: the worker is a child of Ray
        if FileLedger(run).read().charged_through % CHECKPOINT_STEPS:
            os.kill(process, signal.SIGKILL)
            return
        os.kill(process, signal.SIGCONT)
        time.sleep(0.05)


def processes_of(temporary: Path) -> list[str]:
    """The command lines of all processes that name the folder `temporary`, as those of a Ray session in it do."""
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
    """Assert that neither the run's working folder, nor Ray's folder, nor a process of Ray is left."""
    assert not (run.with_name(f"{run.name}.private") / ".work").exists()
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not processes_of(temporary), failure_message=lambda: "\n".join(processes_of(temporary)))
