"""`python -m tensorguard.driver`: the entrypoint of the operator's RayJobs, in the head pod.

It runs one attempt (`runners.pod.attempt`), prints one sentence on how it ended, and exits. The exit code is 0 where
the ledger records the outcome (Completed, BudgetExhausted, Suspended), else the exit code of the reason. KubeRay copies
the end of the output into the RayJob, where every reader of the RayJob sees it. So nothing else is printed: the output
of libraries and every traceback go to a file in the run's folder.

SIGTERM requests the workers to write a checkpoint and stop. The pod's preStop hook does the same, through the stop flag
in the run's folder. After the hook, an interruption of the workers is not printed: only the pod ends, but KubeRay would
take the sentence for the end of the job. KubeRay submits the same attempt again, which resumes from the checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tensafe_api.driver_exit_codes import driver_exit_code
from tensafe_api.reasons import Phase, Reason

if TYPE_CHECKING:
    from tensorguard.runners.pod.attempt import AttemptResult
    from tensorguard.runners.pod.pod_files import PodFiles
    from tensorguard.training.stop_signal import StopSignal

    Run = Callable[[PodFiles, StopSignal], AttemptResult]


HOOK_SECONDS = 5.0
"""How much later than the workers' hooks the head's hook may run when all pods are asked to terminate."""


def main(run: Run | None = None) -> int:
    """Run the attempt of this pod, print how it ended, and return the exit code. Takes over standard output.

    Args:
        run: called in place of `run_attempt`.
    """
    from tensorguard.runners.pod.attempt import run_attempt
    from tensorguard.runners.pod.pod_files import PodFiles
    from tensorguard.training.collective_errors import describe_error
    from tensorguard.training.config import TRACEBACKS, append_traceback
    from tensorguard.training.stop_signal import StopSignal

    files, stop = PodFiles.here(), StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.request())
    print_line = redirect_output(files.run / TRACEBACKS.format(process="driver"))
    try:
        reason, message = (run or run_attempt)(files, stop)
    except Exception as error:
        reason, message = describe_error(error)
        kept = append_traceback(files.run / TRACEBACKS.format(process="driver"), 0)
        message += kept if reason is Reason.INTERNAL_ERROR else ""
    stop_of_hook = StopSignal.of(files.run)
    if reason is Reason.INTERRUPTED and not stop:
        _wait_for(stop_of_hook, HOOK_SECONDS)
    while stop_of_hook and reason in (Reason.INTERRUPTED, Reason.WORKER_LOST):
        signal.pause()  # until the processes of the pod are killed
    failed = reason.phase is Phase.FAILED
    print_line(f"{reason}: {message}." + (f" {reason.fix}" if failed else ""))
    return driver_exit_code(reason) if failed else 0


def redirect_output(path: Path) -> Callable[[str], None]:
    """Redirect standard output and error to `path`, which only its owner can read.

    Returns a function that prints a line to the former standard output.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    output = os.dup(1)
    sys.stdout.flush()
    for number in (1, 2):
        os.dup2(file, number)

    def print_line(line: str) -> None:
        os.write(output, (" ".join(line.split()) + "\n").encode())

    return print_line


def _wait_for(flag: StopSignal, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not flag and time.monotonic() < deadline:
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
