"""The parts of a job without a schema, such as an affinity. Pods have them too, and only Kubernetes checks them.

No rule of a CRD bounds their size. Any user may write a megabyte into those of each job, which takes 30 MB as an object
in memory. So a large part is refused (`plan.admission`), and the cache keeps a text in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

LARGEST = 32 * 1024
"""Characters of one part as JSON. An affinity that names 500 nodes has about 12,000."""
_TOO_LARGE = "(too large)"
_PARTS = (("affinity",), ("topologySpreadConstraints",), ("head", "affinity"), ("head", "tolerations"))
"""Where they are in `spec.cluster`."""


def without_large_parts(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec of a job with a text in place of each part that is too large."""
    cluster = dict(spec.get("cluster") or {})
    for *head, name in _large_parts(spec):
        if head:
            cluster["head"] = {**cluster["head"], name: _TOO_LARGE}
        else:
            cluster[name] = _TOO_LARGE
    return {**spec, "cluster": cluster} if cluster else spec


def find_large_part(spec: Mapping[str, Any]) -> str:
    """Return what is wrong where a part is too large, also where only the text is in its place; empty without one."""
    names = ", ".join(".".join(("spec.cluster", *path)) for path in _large_parts(spec))
    return f"{names}: has more than {LARGEST:,} characters as JSON: shorten it" if names else ""


def _large_parts(spec: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for path in _PARTS:
        part: Any = spec.get("cluster")
        for name in path:
            part = part.get(name) if isinstance(part, Mapping) else None
        if part == _TOO_LARGE or len(json.dumps(part)) > LARGEST:
            yield path
