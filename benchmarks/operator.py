"""The operator at a thousand jobs, beside KubeRay's own operator, on a real API server.

    .venv/bin/python -m benchmarks.operator                      # everything, at 1,000 jobs (20 minutes)
    .venv/bin/python -m benchmarks.operator --jobs 50 --parts burst kuberay

One control plane for all parts, on this machine. There are no nodes: KubeRay's, the kubelet's and the trainer's writes
are played (`benchmarks.fake_kuberay`) while ours is measured, and KubeRay itself is measured last, alone, when ours has
ended: it looks at a namespace of its own, and is given the very RayJobs that ours makes. Both steps are timed in the
same way, from the moment at which a watch of this process tells of the one object to that of the other. What measures
shares the machine's cores with what is measured, for both alike.

Exit status 1 where a goal is missed. The figures are also in `out/operator.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.apiserver import connected
from benchmarks.bed import ROOT, Bed
from benchmarks.operator_parts import PARTS, Figure, Parts

RESULTS = ROOT / "out" / "operator.json"


def table(figures: list[Figure]) -> str:
    """Each figure beside its goal."""
    lines = [f"{'part':9} {'what':58} {'figure':>10} {'goal':>10}"]
    for each in figures:
        goal = "" if each.goal is None else f"≤ {each.goal:.4g}"
        verdict = {None: "", True: "met", False: "MISSED"}[each.met]
        lines.append(f"{each.part:9} {f'{each.what} ({each.unit})':58} {each.value:10.4g} {goal:>10} {verdict}")
    return "\n".join(lines)


async def measure(bed: Bed, jobs: int, parts: list[str]) -> Parts:
    """Run the parts, in their order."""
    async with connected(bed.plane.admin) as server:
        measured = Parts(bed, server, jobs)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(measured.watch())
            try:
                await measured.run(parts)
            finally:
                watching.cancel()
    return measured


def main() -> int:
    """The command line; exit status 0 also where there is no Go, which builds the servers, and the run is skipped."""
    parser = argparse.ArgumentParser(description="The operator at many jobs, beside KubeRay's own operator.")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs at once (default 1000, which the goals are for)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default all)")
    parser.add_argument("--keep", type=Path, help="a folder for the servers' and operators' logs (default: none kept)")
    options = parser.parse_args()
    if options.keep is not None and options.keep.is_dir() and any(options.keep.iterdir()):
        parser.error(f"--keep {options.keep}: is not empty, and the servers would go on from what an earlier run left")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with it
    with tempfile.TemporaryDirectory() as aside:
        bed = Bed(options.keep or Path(aside))
        try:
            bed.start()
            measured = asyncio.run(measure(bed, options.jobs, options.parts))
        except pytest.skip.Exception as missing:
            print(f"skipped: {missing}")
            return 0
        finally:
            bed.stop()
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
    return 1 if measured.unfinished or any(each.met is False for each in measured.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
