"""The order of the tests for a generated mutant: fastest first, so that most mutants are noticed within a second.

`generate` copies this file as the outermost `conftest.py` of mutmut's copy. In come the durations that mutmut measured
before it tried any mutant. Out come the selected tests: first those of single functions, then those that run a training
job, by file, because the tests of a file share a job. With MUTANTS_SECONDS, tests beyond that many seconds are left
out. A survivor may then be a mutant that only a slower test notices.
"""

from __future__ import annotations

import gc
import json
import os
import resource
from collections import defaultdict
from pathlib import Path

import pytest

_MEASURED = Path("mutmut-stats.json")
_MORE_MEMORY = 3 << 30
"""Bytes that the tests of a mutant may allocate: a mutant that appends to a list for ever must not fill the machine."""


def order(durations: dict[str, float], limit: float) -> list[str]:
    """The names of `durations` (seconds by test), in the order in which they run, as long as `limit` seconds last."""
    by_file: dict[str, float] = defaultdict(float)
    for name, seconds in durations.items():
        by_file[name.partition("::")[0]] += seconds

    def key(name: str) -> tuple[bool, float, str, float]:
        file = name.partition("::")[0]
        job = "/training/" in file
        return (job, by_file[file] if job else 0.0, file if job else "", durations[name])

    kept, total = [], 0.0
    for name in sorted(durations, key=key):
        total += durations[name]
        if total <= limit or not kept:
            kept.append(name)
    return kept


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.collectonly:
        gc.freeze()  # mutants run in forks of this process, which need not look at its objects
        return
    if not _MEASURED.exists():
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MORE_MEMORY, most))
    measured = json.loads(_MEASURED.read_text())["duration_by_test"]
    by_name = {item.nodeid: item for item in items}
    kept = order({name: measured.get(name, 0.0) for name in by_name}, float(os.environ.get("MUTANTS_SECONDS", "inf")))
    config.hook.pytest_deselected(items=[by_name[name] for name in by_name.keys() - set(kept)])
    items[:] = [by_name[name] for name in kept]
