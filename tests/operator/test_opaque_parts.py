"""A user who writes a megabyte into each of some jobs does not end the operator of a cluster."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import SETTINGS, FakeCluster, FakeOperator, condition
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.schema import schema_of
from tensafe_operator.children import matches
from tensafe_operator.kinds import KINDS, trim
from tensafe_operator.opaque_parts import _PARTS, LARGEST, find_large_part
from tensafe_operator.plan import decide
from tensafe_operator.plan.observed import Observed
from tensafe_operator.runtime.cache import Cache

LARGE: list[Any] = [{}] * (LARGEST // 4 + 1)
PARTS: dict[str, Any] = {
    "affinity": {"a": LARGE},
    "topologySpreadConstraints": [{"a": LARGE}],
    "head.affinity": {"a": LARGE},
    "head.tolerations": [{"a": LARGE}],
}


def opaque_fields(schema: Any, path: str = "") -> Iterator[str]:
    """The fields of which the schema knows nothing."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield path
    for name, below in schema.get("properties", {}).items():
        yield from opaque_fields(below, f"{path}.{name}")
    if "items" in schema:
        yield from opaque_fields(schema["items"], path)


def test_all_fields_without_a_schema_are_bounded() -> None:
    bounded = {f".spec.cluster.{'.'.join(path)}" for path in _PARTS}
    assert set(opaque_fields(schema_of(TenSafeTrainingJob))) == bounded == {f".spec.cluster.{name}" for name in PARTS}


@pytest.mark.parametrize("name", PARTS)
def test_large_part_is_refused_by_its_name_whether_or_not_the_job_is_from_the_cache(name: str) -> None:
    cluster = FakeCluster.with_job(**{f"spec__cluster__{name.replace('.', '__')}": PARTS[name]})
    FakeOperator(cluster).settle()
    message = f"spec.cluster.{name}: has more than 32,768 characters as JSON: shorten it"
    assert condition(cluster, "Stalled")["message"] == message
    cached = trim("TenSafeTrainingJob", cluster.job)
    assert len(str(cached)) < len(str(cluster.job)) / 2
    assert decide(Observed(cached), cluster.now, SETTINGS) == decide(cluster.observe(), cluster.now, SETTINGS)
    assert cluster.ledger is None


def test_part_of_ordinary_size_is_kept() -> None:
    cluster = FakeCluster.with_job(spec__cluster__affinity={"a": [{}] * 1000}, spec__cluster__head={"affinity": {}})
    assert find_large_part(cluster.job["spec"]) == ""
    assert trim("TenSafeTrainingJob", cluster.job)["spec"] == cluster.job["spec"]


def test_labels_and_annotations_of_a_job_are_not_cached() -> None:
    """A user may give a job more than a megabyte of them, and no decision depends on them."""
    own = {f"{number}": "x" * 63 for number in range(100)}
    cluster = FakeCluster.with_job(metadata__labels=own, metadata__annotations=own)
    metadata = trim("TenSafeTrainingJob", cluster.job)["metadata"]
    assert metadata["labels"] == {} and "annotations" not in metadata


def large_job(number: int, *, opaque: bool) -> dict[str, Any]:
    """A suspended job of a megabyte, in a part without a schema or in the names of its labels."""
    if opaque:
        changes: dict[str, Any] = {"spec__cluster__affinity": {"a": [{}] * 300_000}}
    else:
        names = [f"{each}{'😀' * 240}" for each in range(1000)]
        model = {"name": "a/b", "task": "SequenceClassification", "numLabels": 1000, "labelNames": names}
        changes = {"spec__model": model, "spec__dataset__columns": {"text": "text", "label": "label"}}
    own = {"metadata__name": f"job-{number}", "metadata__uid": f"uid-{number}", "metadata__resourceVersion": "1"}
    return FakeCluster.with_job(spec__suspend=True, **own, **changes).job


@pytest.mark.parametrize("opaque", [True, False])
def test_jobs_of_a_megabyte_take_the_memory_of_their_text(opaque: bool) -> None:
    """Of a job of a megabyte, 37 MB stayed in memory, and 9 MB where the fields have a schema."""
    cache, jobs = Cache[Any](KINDS), 4

    def handle(number: int) -> None:
        cache.put("TenSafeTrainingJob", large_job(number, opaque=opaque))
        snapshot = cache.snapshot(("clinic", f"job-{number}"))
        assert snapshot is not None
        decide(Observed(snapshot.parent), 1_800_000_000.0, SETTINGS)

    handle(0)  # imports SciPy
    tracemalloc.start()
    try:
        for number in range(1, jobs + 1):
            handle(number)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < jobs * 1.5 * 2**20


@pytest.mark.parametrize("peers", [1, 5_000])
def test_large_network_policy_is_kept_as_a_digest_and_still_compared(peers: int) -> None:
    """16 of two megabytes, each for a job, let the memory of an operator grow to 1.7 GB when the jobs started."""
    egress = [{"to": [{"ipBlock": {"cidr": f"10.{each // 256}.{each % 256}.0/24"}}]} for each in range(peers)]
    policy: dict[str, Any] = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "a", "labels": {}},
        "spec": {"egress": egress},
    }
    found = trim("NetworkPolicy", policy)
    assert len(str(found)) < LARGEST
    assert (found["spec"] == policy["spec"]) is (peers == 1)
    assert matches(found, policy) and matches(policy, policy)
    assert not matches(found, {**policy, "spec": {"egress": [*egress, {}]}})
