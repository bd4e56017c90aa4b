"""What a person sees while a job runs: a live panel on a terminal, a line now and then in a log.

In: the engine's events (a display is a `Listener`) and sentences of the command's own. Everything goes to standard
error. Both displays may be called from any thread; neither knows more than `track` does, and nothing that they show
is private.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tensafe_api.resolve import Plan
from tensorguard.cli.progress import Track, duration, restart_of
from tensorguard.training.run_log import LogRecord, Preparing, Started, Stepped

PLAIN_SHARE = 0.05
"""A log gets a line each time this share of the steps is done,"""
PLAIN_SECONDS = 10.0
"""or this much time has passed."""

_FRAMES_PER_SECOND = 8


class Display(Protocol):
    """Something that shows a run. Used as a context manager around it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hear(self, event: LogRecord) -> None:
        """Show what an event changes."""
        ...

    def say(self, sentence: str) -> None:
        """Show a sentence."""
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
        self._track = Track(plan)
        self._lock = threading.Lock()
        self._shown: Stepped | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, sentence: str) -> None:
        # One write a line, so that lines of other processes on the same log cannot come between.
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()

    def hear(self, event: LogRecord) -> None:
        with self._lock:
            before = self._track.started
            self._track.fold(event)
            match event:
                case Preparing():
                    self.say(event.what)
                case Started():
                    self._shown = None
                    self.say(beginning(self._track.plan, before, event))
                case Stepped() if self._due(event):
                    self._shown = event
                    self.say(self._line())

    def _due(self, event: Stepped) -> bool:
        if self._shown is None or event.step >= self._track.plan.steps:
            return True
        far = event.step - self._shown.step >= PLAIN_SHARE * self._track.plan.steps
        return far or event.time - self._shown.time >= PLAIN_SECONDS

    def _line(self) -> str:
        track = self._track
        steps = track.plan.steps
        progress = f"step {track.step:,}/{steps:,} ({100 * track.step // steps} %)"
        return " · ".join([progress, f"ε {track.spent()}", *track.notes()])


class LiveDisplay:
    """A panel that is drawn anew several times a second, under lines that stay."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._track = Track(plan)
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

    def say(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    def hear(self, event: LogRecord) -> None:
        with self._lock:
            before = self._track.started
            if isinstance(event, Preparing | Started):
                self._finish_stage()
            self._track.fold(event)
            if isinstance(event, Preparing):
                self._since = time.monotonic()
            if isinstance(event, Started):
                style = "yellow" if restart_of(before, event) else "green"
                self._console.print(Text(beginning(self._track.plan, before, event), style=style), soft_wrap=True)

    def _finish_stage(self) -> None:
        """Leave a line about the stage that is over."""
        with self._lock:
            if self._track.stage is None:
                return
            line = Text.assemble(
                ("✓ ", "green"), self._track.stage, (f"  {duration(time.monotonic() - self._since)}", "dim")
            )
            self._console.print(line, soft_wrap=True)
            self._track.stage = None

    def _panel(self) -> RenderableType:
        track = self._track
        rows: list[RenderableType] = []
        if track.started is not None:
            rows.append(self._bars())
            rows.append(Text("   " + " · ".join(track.notes()), style="dim"))
        if track.stage is not None:
            self._spinner.update(
                text=Text.assemble(track.stage, (f"  {duration(time.monotonic() - self._since)}", "dim"))
            )
            rows.append(self._spinner)
        return Group(*rows)

    def _bars(self) -> Table:
        track, plan = self._track, self._track.plan
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=5, style="bold")
        grid.add_column(ratio=1)
        grid.add_column(justify="right", no_wrap=True)
        share = f"{100 * track.step // plan.steps} %"
        grid.add_row(
            "steps",
            ProgressBar(plan.steps, track.step, complete_style="cyan", finished_style="green"),
            f"{track.step:,}/{plan.steps:,}  {share:>5}",
        )
        target = plan.target_epsilon
        grid.add_row(
            "ε",
            ProgressBar(target, min(target, track.epsilon), complete_style="magenta", finished_style="magenta"),
            track.spent(),
        )
        return grid


def beginning(plan: Plan, before: Started | None, now: Started) -> str:
    """A sentence about the steps that begin now."""
    if restart_of(before, now):
        return f"The workers were restarted and go on from step {now.step:,}; steps that run again are charged again."
    if now.step or now.attempt > 1:
        return f"Attempt {now.attempt} goes on from step {now.step:,} of {plan.steps:,}."
    workers = plan.mechanism.workers
    return f"Training begins: {plan.steps:,} steps on {workers} worker{'' if workers == 1 else 's'}."
