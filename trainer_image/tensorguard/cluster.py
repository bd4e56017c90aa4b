"""`python -m tensorguard.cluster`: the entrypoint of the operator's RayJobs, in a cluster's head pod.

It runs one attempt (`runners.pod.attempt`), prints one sentence that says how it ended, and exits with 0 where a ledger
says the rest (Completed, BudgetExhausted, Suspended), else with the exit code of the reason. KubeRay copies the end of
what it prints into the RayJob, where everybody may read it, so nothing else is printed: what libraries write, and every
traceback, goes to a file in the run's folder.

SIGTERM asks the workers to seal a checkpoint and stop. So does the pod's preStop hook, by the stop flag in the run's
folder: then nothing is said of workers that were interrupted, since KubeRay would take it for the end of the job, where
all that ends is the pod. It submits the same attempt again, which goes on from the checkpoint (decision 0015).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tensafe_api.reasons import Phase, Reason

if TYPE_CHECKING:
    from tensorguard.runners.pod.attempt import AttemptResult
    from tensorguard.runners.pod.pod_files import PodFiles
    from tensorguard.training.stop_signal import StopSignal

    Run = Callable[[PodFiles, StopSignal], AttemptResult]


HOOK_SECONDS = 5.0
"""How long the head's hook may come after those of the workers, where all are told to go."""


def main(run: Run | None = None) -> int:
    """Run the attempt of this pod, say how it ended, and return the exit code. Keeps standard output for itself.

    Args: run: takes the place of `run_attempt`.
    """
    from tensorguard.runners.pod.attempt import run_attempt
    from tensorguard.runners.pod.pod_files import PodFiles
    from tensorguard.training.collective_errors import describe_error
    from tensorguard.training.config import TRACEBACKS, append_traceback
    from tensorguard.training.stop_signal import StopSignal

    mounted, stop = PodFiles.here(), StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.request())
    say = keep_output(mounted.run / TRACEBACKS.format(process="driver"))
    try:
        reason, message = (run or run_attempt)(mounted, stop)
    except Exception as error:
        with contextlib.suppress(OSError):
            append_traceback(mounted.run / TRACEBACKS.format(process="driver"), 0)
        reason, message = describe_error(error)
    told_to_go = StopSignal.of(mounted.run)
    if reason is Reason.INTERRUPTED and not stop:
        _wait_for(told_to_go, HOOK_SECONDS)
    while told_to_go and reason in (Reason.INTERRUPTED, Reason.WORKER_LOST):
        signal.pause()  # until the pod's processes are killed
    failed = reason.phase is Phase.FAILED
    say(f"{reason}: {message}." + (f" {reason.fix}" if failed else ""))
    return reason.exit_code if failed else 0


def keep_output(path: Path) -> Callable[[str], None]:
    """Send all that is printed from now on to `path`, its owner's alone. Returns what prints a line nevertheless."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    output = os.dup(1)
    sys.stdout.flush()
    for number in (1, 2):
        os.dup2(file, number)

    def say(line: str) -> None:
        os.write(output, (" ".join(line.split()) + "\n").encode())

    return say


def _wait_for(flag: StopSignal, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not flag and time.monotonic() < deadline:
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
