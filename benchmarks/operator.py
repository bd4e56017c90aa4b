"""Measures the operator at a thousand jobs, and KubeRay's operator for comparison, on a real API server.

    .venv/bin/python -m benchmarks.operator                      # everything, at 1,000 jobs (20 minutes)
    .venv/bin/python -m benchmarks.operator --jobs 50 --parts burst kuberay
    .venv/bin/python -m benchmarks.operator --jobs 10 --parts start memory --python /tmp/operator/bin/python

All parts use one control plane on this machine. There are no nodes: while the operator is measured,
`tests.support.fakes.simulator` writes what KubeRay, the kubelet and the trainer write. KubeRay's operator is measured
last, after the operator has stopped. It watches a namespace of its own, with the same RayJobs that the operator
creates. Both are timed in the same way: from the watch event of the first object to that of the second. The benchmark
itself shares the machine's cores with the measured programs, in both cases.

The exit status is 1 if a goal is missed at 1,000 jobs or more. The figures are also written to `out/operator.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.command import option_parser
from benchmarks.operator_parts import PARTS, Figure, Parts
from benchmarks.testbed import ROOT, Testbed
from tests.support.programs.api_server import connect
from tests.support.programs.gotools import GoUnavailable

RESULTS = ROOT / "out" / "operator.json"
GOAL_JOBS = 1000
"""The number of jobs that the goals are for."""


def table(figures: list[Figure]) -> str:
    """Format the figures with their goals."""
    lines = [f"{'part':9} {'what':58} {'figure':>10} {'goal':>10}"]
    for each in figures:
        goal = "" if each.goal is None else f"≤ {each.goal:.4g}"
        verdict = {None: "", True: "met", False: "MISSED"}[each.met]
        lines.append(f"{each.part:9} {f'{each.what} ({each.unit})':58} {each.value:10.4g} {goal:>10} {verdict}")
    return "\n".join(lines)


async def measure(testbed: Testbed, jobs: int, parts: list[str]) -> Parts:
    """Run the parts in order."""
    async with connect(testbed.plane.admin) as server:
        measured = Parts(testbed, server, jobs)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(measured.watch())
            try:
                await measured.run(parts)
            finally:
                watching.cancel()
    return measured


def main() -> int:
    """Run the command line. The exit status is 0, and nothing runs, where the servers cannot be built without Go."""
    parser = option_parser("operator", "Measure the operator at many jobs, and KubeRay's operator for comparison.")
    parser.add_argument(
        "--jobs", type=int, default=GOAL_JOBS, help="number of jobs (default %(default)s; the goals are for them)"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run (default all)")
    parser.add_argument("--keep", type=Path, help="folder for the logs of all servers (default: logs are deleted)")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="interpreter that runs the operator, such as one with only its packages",
    )
    options = parser.parse_args()
    if options.keep is not None and options.keep.is_dir() and any(options.keep.iterdir()):
        parser.error(
            f"--keep {options.keep}: the folder is not empty, and the servers would reuse what an earlier run left: "
            "name an empty folder"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` stops the servers
    with tempfile.TemporaryDirectory() as scratch:
        testbed = Testbed(options.keep or Path(scratch), options.python)
        try:
            testbed.start()
            measured = asyncio.run(measure(testbed, options.jobs, options.parts))
        except GoUnavailable as missing:
            print(f"skipped: {missing}")
            return 0
        finally:
            testbed.stop()
    load = os.getloadavg()[::2]
    print(table(measured.figures))
    if measured.unfinished:
        print(f"UNFINISHED in {measured.unfinished}")
    print(f"{os.cpu_count()} cores; load {load[0]:.1f} over a minute, {load[1]:.1f} over a quarter of an hour")
    RESULTS.parent.mkdir(exist_ok=True)
    found = {
        "jobs": options.jobs,
        "cores": os.cpu_count(),
        "figures": [asdict(each) for each in measured.figures],
        "requests": measured.requests,
        "unfinished": measured.unfinished,
    }
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    missed = options.jobs >= GOAL_JOBS and any(each.met is False for each in measured.figures)
    return 1 if measured.unfinished or missed else 0


if __name__ == "__main__":
    sys.exit(main())
