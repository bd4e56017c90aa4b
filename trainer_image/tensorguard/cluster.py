"""`python -m tensorguard.cluster`: the entrypoint of the operator's RayJobs, in a cluster's head pod.

It runs one attempt (`engine.attempt`), prints one sentence that says how it ended, and exits with 0 where a ledger
says the rest (Completed, BudgetExhausted, Suspended), else with the exit code of the reason. KubeRay copies the end of
what it prints into the RayJob, where everybody may read it, so nothing else is printed: what libraries write, and every
traceback, goes to a file in the run's folder.

SIGTERM asks the workers to seal a checkpoint and stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tensafe_api.reasons import Phase

if TYPE_CHECKING:
    from tensorguard.engine.attempt import Ending
    from tensorguard.engine.mounted import Mounted
    from tensorguard.engine.stopping import Stop

    Run = Callable[[Mounted, Stop], Ending]


def main(run: Run | None = None) -> int:
    """Run the attempt of this pod, say how it ended, and return the exit code. Keeps standard output for itself.

    Args: run: takes the place of `run_attempt`.
    """
    from tensorguard.engine.attempt import run_attempt
    from tensorguard.engine.config import ERRORS, note_traceback
    from tensorguard.engine.mounted import Mounted
    from tensorguard.engine.status import phase_of
    from tensorguard.engine.stopping import Stop
    from tensorguard.engine.together import told

    mounted, stop = Mounted.here(), Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.request())
    say = keep_output(mounted.run / ERRORS.format(who="driver"))
    try:
        reason, message = (run or run_attempt)(mounted, stop)
    except Exception as error:
        with contextlib.suppress(OSError):
            note_traceback(mounted.run / ERRORS.format(who="driver"), 0)
        reason, message = told(error)
    failed = phase_of(reason) is Phase.FAILED
    say(f"{reason}: {message}." + (f" {reason.mend}" if failed else ""))
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


if __name__ == "__main__":
    sys.exit(main())
