"""Shows a running job: a live panel on a terminal, occasional lines in a log.

In: log records of the run, and sentences of the command. Out: text on standard error. Both displays may be called from
any thread. They show what `progress` computes, and nothing of it is private.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tensafe_api.resolve import Plan
from tensorguard.cli.progress import RunProgress, is_restart
from tensorguard.cli.wording import duration_text, steps_text
from tensorguard.training.run_log import LogRecord, Preparing, Started, Stepped

PLAIN_SHARE = 0.05
"""A log gets a line each time this share of the steps is done, ..."""
PLAIN_SECONDS = 10.0
"""... or this much time has passed."""

_FRAMES_PER_SECOND = 8


class Display(Protocol):
    """Shows a run. Used as a context manager around it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, record: LogRecord) -> None:
        """Show what a log record changes."""
        ...

    def print_line(self, sentence: str) -> None:
        """Print one line, above the panel if there is one."""
        ...


def display_for(plan: Plan) -> Display:
    """The display that suits standard error."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(plan, console)
    return PlainDisplay(plan)


class PlainDisplay:
    """Lines for a log: each stage, each start, and steps at most every `PLAIN_SHARE` or `PLAIN_SECONDS`."""

    def __init__(self, plan: Plan) -> None:
        self._progress = RunProgress(plan)
        self._lock = threading.Lock()
        self._shown: Stepped | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def print_line(self, sentence: str) -> None:
        # One write for each line, so that lines of other processes in the same log cannot interleave.
        with suppress(OSError):  # a full disk or a closed pipe (`| head`) must not end the training
            sys.stderr.write(f"{sentence}\n")
            sys.stderr.flush()

    def show(self, record: LogRecord) -> None:
        with self._lock:
            before = self._progress.started
            self._progress.update(record)
            match record:
                case Preparing():
                    self.print_line(record.what)
                case Started():
                    self._shown = None
                    self.print_line(start_sentence(self._progress.plan, before, record))
                case Stepped() if self._due(record):
                    self._shown = record
                    self.print_line(self._line())

    def _due(self, record: Stepped) -> bool:
        if self._shown is None or record.step >= self._progress.plan.steps:
            return True
        far = record.step - self._shown.step >= PLAIN_SHARE * self._progress.plan.steps
        return far or record.time - self._shown.time >= PLAIN_SECONDS

    def _line(self) -> str:
        progress = self._progress
        steps = progress.plan.steps
        done = f"step {progress.step:,}/{steps:,} ({100 * progress.step // steps} %)"
        return " · ".join([done, f"ε {progress.epsilon_text()}", *progress.notes()])


class LiveDisplay:
    """A panel that is redrawn several times a second, below lines that remain."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._progress = RunProgress(plan)
        self._console = console
        self._lock = threading.RLock()
        self._since = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=_FRAMES_PER_SECOND)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish_stage()
        self._live.stop()

    def print_line(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    def show(self, record: LogRecord) -> None:
        with self._lock:
            before = self._progress.started
            if isinstance(record, Preparing | Started):
                self._finish_stage()
            self._progress.update(record)
            if isinstance(record, Preparing):
                self._since = time.monotonic()
            if isinstance(record, Started):
                style = "yellow" if is_restart(before, record) else "green"
                self._console.print(
                    Text(start_sentence(self._progress.plan, before, record), style=style), soft_wrap=True
                )

    def _finish_stage(self) -> None:
        """Print a line about the stage that has ended."""
        with self._lock:
            if self._progress.stage is None:
                return
            line = Text.assemble(
                ("✓ ", "green"), self._progress.stage, (f"  {duration_text(time.monotonic() - self._since)}", "dim")
            )
            self._console.print(line, soft_wrap=True)
            self._progress.stage = None

    def _panel(self) -> RenderableType:
        progress = self._progress
        rows: list[RenderableType] = []
        if progress.started is not None:
            rows.append(self._bars())
            rows.append(Text("   " + " · ".join(progress.notes()), style="dim"))
        if progress.stage is not None:
            self._spinner.update(
                text=Text.assemble(progress.stage, (f"  {duration_text(time.monotonic() - self._since)}", "dim"))
            )
            rows.append(self._spinner)
        return Group(*rows)

    def _bars(self) -> Table:
        progress, plan = self._progress, self._progress.plan
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=5, style="bold")
        grid.add_column(ratio=1)
        grid.add_column(justify="right", no_wrap=True)
        share = f"{100 * progress.step // plan.steps} %"
        grid.add_row(
            "steps",
            ProgressBar(plan.steps, progress.step, complete_style="cyan", finished_style="green"),
            f"{progress.step:,}/{plan.steps:,}  {share:>5}",
        )
        target = plan.target_epsilon
        grid.add_row(
            "ε",
            ProgressBar(target, min(target, progress.epsilon), complete_style="magenta", finished_style="magenta"),
            progress.epsilon_text(),
        )
        return grid


def start_sentence(plan: Plan, before: Started | None, now: Started) -> str:
    """A sentence about the steps that start now."""
    if is_restart(before, now):
        return f"The workers were restarted and resume from step {now.step:,}; steps that run again are charged again."
    if now.step or now.attempt > 1:
        return f"Attempt {now.attempt} resumes from step {now.step:,} of {plan.steps:,}."
    workers = plan.mechanism.workers
    return f"Training starts: {steps_text(plan.steps)} on {workers} worker{'' if workers == 1 else 's'}."
