"""Shows a job while it changes, and ends with the job's outcome.

On a terminal one line is redrawn below the lines that remain. Elsewhere there are only lines: one for each change of
the phase or of its reason, one for each end of an attempt, and one for each twentieth of the steps.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tensafe_api.reasons import Phase, Reason
from tensafe_kubectl import screen
from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.connection import Options
from tensafe_kubectl.errors import EXHAUSTED, FAILED, INTERRUPTED, SUCCEEDED, SUSPENDED
from tensafe_kubectl.reading import Notes, part, read_pods, read_warnings
from tensafe_kubectl.terminal import PHASE_STYLES, bar, clean, print_line, print_note
from tensafe_kubectl.watching import watch_job

PLAIN_SHARE = 0.05
_OUTCOMES = {Phase.SUCCEEDED: SUCCEEDED, Phase.BUDGET_EXHAUSTED: EXHAUSTED, Phase.FAILED: FAILED}


def command(verb: str, options: Options, job: Object, *more: str) -> str:
    """A command about this job that the user can copy."""
    metadata = job["metadata"]
    return shlex.join(["kubectl", "tensafe", verb, metadata["name"], *options.repeated(metadata["namespace"]), *more])


def outcome_of(job: Object) -> int | None:
    """The exit code of a job that has ended or is suspended; None while it can continue without a user."""
    phase = screen.phase_of(job)
    if phase == Phase.SUSPENDED and part(job, "spec.suspend"):
        return SUSPENDED
    return _OUTCOMES[Phase(phase)] if phase in list(Phase) and Phase(phase).final else None


def follow_to_end(api: Api, options: Options, job: Object) -> int:
    """Show the job until it ends or is suspended, then its screen. Returns the exit code of its outcome.

    Ctrl-C ends only this command.
    """
    ended = follow(api, options, job, outcome_of)
    if ended is None:
        return INTERRUPTED
    _show_end(api, options, ended)
    return outcome_of(ended) or SUCCEEDED


def follow(api: Api, options: Options, job: Object, until: Callable[[Object], object | None]) -> Object | None:
    """Show the job until a condition is not None; return the job then. None: Ctrl-C, which leaves the job as it is."""
    try:
        with _display() as display:
            for found in watch_job(api, job, display.interrupted):
                display.show(found)
                if until(found) is not None:
                    return found
    except KeyboardInterrupt:
        print_note(f"interrupted: the job {job['metadata']['name']} continues in the cluster. Follow it again with")
        print_note(f"    {command('status', options, job, '--watch')}")
        print_note("or stop it at a checkpoint with")
        print_note(f"    {command('suspend', options, job)}")
    return None


class _Display:
    """Lines for changes, and on a terminal a last line that is redrawn."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._state: tuple[str, str, str] | None = None
        self._ended: set[int] = set()
        self._shown_step = -1

    def interrupted(self, cause: str) -> None:
        """Report that the API server does not answer."""
        print_note(f"{_clock()}  the connection to the API server broke ({cause}): connecting again; the job continues")

    def show(self, job: Object) -> None:
        """Show what has changed since the last call."""
        for attempt in part(job, "status.attempts") or ():
            if attempt.get("endTime") and attempt["number"] not in self._ended:
                self._ended.add(attempt["number"])
                if attempt.get("reason") != Reason.COMPLETED:
                    message = attempt.get("message") or ""
                    print_line(_clock(), f"  attempt {attempt['number']} ended: {attempt.get('reason')}: {message}")
        phase, (reason, sentence) = screen.phase_of(job), screen.state_of(job)
        if (phase, reason, sentence) != self._state:
            self._state = (phase, reason, sentence)
            blocked = f", blocked ({reason})" if screen.is_blocked(job) else ""
            print_line(_clock(), "  ", (phase, PHASE_STYLES.get(phase, "bold")), blocked, f": {sentence}")
        self._show_progress(job)

    def _show_progress(self, job: Object) -> None:
        steps, remark = screen.progress_text(job)
        if not steps or screen.phase_of(job) != Phase.RUNNING:
            if self._live is not None:
                self._live.update(Text(""))
            return
        done, total = part(job, "status.progress.step") or 0, part(job, "status.progress.totalSteps")
        spent, target = part(job, "status.privacy.epsilonSpent"), part(job, "status.privacy.targetEpsilon")
        figures = [steps, f"ε {spent} of {target}" if spent else "", remark]
        line = " · ".join(filter(None, figures))
        if self._live is not None:
            self._live.update(Text(clean(f"{bar(done, total)}  {line}")), refresh=True)
        elif done - self._shown_step >= PLAIN_SHARE * total or (done == total and done != self._shown_step):
            self._shown_step = done
            print_line(f"{_clock()}  {line}")


@contextmanager
def _display() -> Iterator[_Display]:
    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Display(None)
        return
    with Live(console=console, auto_refresh=False, transient=True, redirect_stderr=True) as live:
        yield _Display(live)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _show_end(api: Api, options: Options, job: Object) -> None:
    notes = Notes()
    pods = notes.try_to(lambda: read_pods(api, job)) or []
    warnings = notes.try_to(lambda: read_warnings(api, job, pods)) or []
    print_line()
    screen.show(job, warnings, notes.sentences, time.time())
    match outcome_of(job):
        case 1:
            print_line()
            print_line(f"What to do: {command('explain', options, job)}")
        case 4:
            print_line()
            print_line(f"Continue it: {command('resume', options, job)}")
