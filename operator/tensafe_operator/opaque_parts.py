"""Large parts of objects. Any user may write a megabyte into an object, which takes up to 50 MB in memory.

No rule of a CRD bounds the parts of a job without a schema, such as an affinity, which only Kubernetes checks. A large
one is refused (`plan.admission`), and the cache keeps a text in its place. Of another object that is only compared, the
digest of a large part is kept.
"""

from __future__ import annotations

import hashlib
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


def bounded(part: Any) -> Any:
    """Return a part of an object, or its digest if it is too large to be kept. Equal parts have equal digests."""
    text = json.dumps(part, sort_keys=True)
    return part if len(text) <= LARGEST else {"sha256": hashlib.sha256(text.encode()).hexdigest()}


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
