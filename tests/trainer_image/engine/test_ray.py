"""The command on a real Ray cluster: killed in every way, interrupted in both, and nothing of it left behind.

One job lives through all of it, since a start takes a quarter of a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import MANIFEST, make_model, records

from tensafe_api.manifest import load_manifest
from tensafe_api.resolve import resolve
from tensafe_api.statement import recompute
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.engine.config import EVENTS
from tensorguard.engine.events import Event, EventReader, Saved, Started, Stepped
from tensorguard.engine.local import local_ray
from tensorguard.engine.run import run
from tensorguard.engine.stopping import Stop
from tensorguard.ledger.contract import LedgerState
from tensorguard.ledger.file import FileLedger

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

OVERRIDES = (
    "spec.training.steps=300",
    "spec.checkpoint.everySteps=10",
    "spec.checkpoint.keep=2",
    "spec.privacy.noiseMultiplier=4",
    "spec.cluster.worker.cpus=500m",
    "spec.dataset.uri=data.jsonl",
)
PATIENCE_SECONDS = 240


def write_job(place: Path) -> None:
    make_model(place / "model")
    (place / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records(240)))
    text = MANIFEST.replace("MODEL", str(place / "model")).replace("CHECKPOINTS", str(place / "checkpoints"))
    (place / "job.yaml").write_text(text)


class Command:
    """`tensafe run` in a process group of its own, as a shell starts it."""

    def __init__(self, place: Path, temporary: Path, *, resume: bool) -> None:
        self.output = place / "out"
        self._events = EventReader(self.output / EVENTS, from_end=True)
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

    def wait_for(self, happened: Callable[[list[Event]], bool]) -> list[Event]:
        """Read events until they show what is waited for."""
        events: list[Event] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not happened(events):
            assert time.monotonic() < deadline, f"nothing happened: {events[-3:]}"
            assert self.process.poll() is None, self.words()
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                events += self._events.read()
        return events

    def go_on_for(self, steps: int) -> list[Event]:
        """Wait for the next start of the workers, and so many steps."""

        def far(events: list[Event]) -> bool:
            starts = [number for number, event in enumerate(events) if isinstance(event, Started)]
            return bool(starts) and sum(isinstance(event, Stepped) for event in events[starts[-1] :]) >= steps

        return self.wait_for(far)

    def ledger(self) -> LedgerState:
        return FileLedger(self.output).read()

    def kill_rank_0(self) -> None:
        """SIGKILL of the worker that holds the ledger."""
        os.kill(int(self.ledger().charges[-1].holder.rsplit("/", 1)[1]), signal.SIGKILL)

    def kill_driver(self) -> None:
        self.process.kill()
        self.process.wait()

    def interrupt(self, number: signal.Signals) -> tuple[int, str]:
        """The exit code and what came on standard output. Ctrl-C goes to the whole process group, SIGTERM to one."""
        (os.killpg if number is signal.SIGINT else os.kill)(self.process.pid, number)
        return self.end()

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, out.decode()

    def words(self) -> str:
        return Path(self.stderr.name).read_text()[-4000:]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the command makes its temporary folders. Ray's sockets lie there, so its path has to be short."""
    directory = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


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


def test_it_lives_through_kills_and_interrupts_and_leaves_nothing_behind(tmp_path: Path, temporary: Path) -> None:
    write_job(tmp_path)
    spent: list[int] = []

    def checked(command: Command) -> LedgerState:
        ledger = command.ledger()
        spent.append(ledger.steps_charged)
        assert spent == sorted(spent)
        return ledger

    # A worker dies: Ray starts the group again by itself.
    command = Command(tmp_path, temporary, resume=False)
    command.go_on_for(14)
    before = checked(command)
    command.kill_rank_0()
    command.go_on_for(14)
    ledger = checked(command)
    assert (ledger.attempt, ledger.incarnation) == (1, 2)
    assert ledger.steps_charged > before.steps_charged
    assert ledger.claimed_from == (0, 10)
    assert ledger.steps_recharged > 0

    # The driver dies: a person resumes, though the orphaned workers may still hold the ledger.
    command.kill_driver()
    command = Command(tmp_path, temporary, resume=True)
    command.go_on_for(14)
    assert (checked(command).attempt, command.ledger().incarnation) == (2, 1)

    # Both die.
    command.kill_rank_0()
    command.kill_driver()
    command = Command(tmp_path, temporary, resume=True)
    command.go_on_for(14)
    assert checked(command).attempt == 3

    # Ctrl-C, then SIGTERM: each seals a checkpoint of the last step that was revealed.
    for number in (signal.SIGINT, signal.SIGTERM):
        code, out = command.interrupt(number)
        assert code == 130, command.words()
        status = json.loads(out)["status"]
        ledger = checked(command)
        assert status["phase"] == "Suspended"
        assert ledger.outcome == "Suspended"
        assert status["privacy"]["stepsCharged"] == ledger.steps_charged
        assert ledger.releases[-1].step == status["progress"]["step"]
        assert CheckpointStore(str(tmp_path / "checkpoints")).exists(ledger.releases[-1].uri.rsplit("/", 1)[1])
        assert "--resume" in command.words()
        command = Command(tmp_path, temporary, resume=True)
        started = next(event for event in command.go_on_for(5) if isinstance(event, Started))
        assert started.step == ledger.releases[-1].step

    code, out = command.end()
    assert code == 0, command.words()
    job = json.loads(out)
    ledger = checked(command)
    _, plan = resolve(load_manifest(tmp_path / "out" / "job.yaml"))
    assert job["status"]["phase"] == "Succeeded"
    assert [attempt["reason"] for attempt in job["status"]["attempts"]] == [
        *("WorkerLost", "WorkerLost", "Interrupted", "Interrupted", "Completed")
    ]
    assert job["status"]["attempts"][0]["restarts"] == 1
    assert job["status"]["privacy"]["stepsCharged"] == ledger.steps_charged == 300 + ledger.steps_recharged
    statement = json.loads((tmp_path / "checkpoints" / "final" / "statement.json").read_text())
    assert recompute(statement) == job["status"]["privacy"]["epsilonSpent"]
    assert float(job["status"]["privacy"]["epsilonSpent"]) >= plan.epsilon(300)
    saved = [event.step for event in EventReader(tmp_path / "out" / EVENTS).read() if isinstance(event, Saved)]
    assert saved[-1] == 300

    assert not (tmp_path / "out" / ".work").exists()
    assert list(temporary.iterdir()) == []
    deadline = time.monotonic() + 60
    while left := processes_of(temporary):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)  # a process that ends tells nobody but its parent


@pytest.fixture(scope="module")
def a_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray for several runs in this process, which join it."""
    with local_ray(tmp_path_factory.mktemp("ray"), cpus=1, gpus=0):
        yield


@pytest.mark.parametrize(
    ("override", "content", "reason", "named"),
    [
        ("spec.dataset.columns.text=note", None, "DatasetUnsuitable", "has no column 'note'"),
        ("spec.dataset.uri=data.jsonl", "", "DatasetUnsuitable", "there is no data at"),
        ("spec.dataset.uri=data.jsonl", '{"text": null, "label": 1}\n', "DatasetUnsuitable", "no record is usable"),
        ("spec.dataset.uri=nowhere.jsonl", None, "DatasetUnreadable", "nowhere.jsonl"),
        ("spec.dataset.uri=nosuch://bucket/data.jsonl", None, "DatasetUnreadable", "nosuch"),
    ],
)
def test_data_that_cannot_be_used_ends_the_run_in_one_sentence_before_anything_is_spent(
    a_ray: None, tmp_path: Path, override: str, content: str | None, reason: str, named: str
) -> None:
    write_job(tmp_path)
    if content is not None:
        (tmp_path / "data.jsonl").write_text(content)
    job = load_manifest(tmp_path / "job.yaml", (*OVERRIDES, "spec.cluster.workers=1", override))
    result = run(
        job, output_dir=tmp_path / "out", base_dir=tmp_path, resume=False, listener=lambda event: None, stop=Stop()
    )
    assert result.job.status is not None
    attempt = result.job.status.attempts[-1]
    assert (result.exit_code, attempt.reason) == (1, reason), attempt.message
    assert attempt.message is not None
    assert named in attempt.message
    assert "\n" not in attempt.message
    assert result.job.status.privacy.steps_charged == 0
    assert not (tmp_path / "out" / "ledger.jsonl").exists()
