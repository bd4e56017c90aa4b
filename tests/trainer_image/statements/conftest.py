"""Statements of several kinds, as their readers receive them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tensafe_api.resources.mechanism import EarlierSteps, Mechanism, charged_events
from tensafe_api.statement.contents import AggregationStatement, StatementInputs, build_statement, canonical_json

Make = Callable[..., dict[str, Any]]


def build(charged: int = 90, mechanism: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A statement of 150 planned steps of which `charged` were charged."""
    settings: dict[str, Any] = {
        "sample_rate": "0.04",
        "noise_multiplier": "1.5",
        "clip": "0.7",
        "unit": "User",
        "workers": 4,
        "grid_bits": 21,
        "expected_batch_size": 200,
    }
    run = Mechanism(**(settings | (mechanism or {})))
    inputs: dict[str, Any] = {
        "job_name": "claims-triage",
        "job_uid": "3f2a91c0-1b7e-4a4e-9a55-6f2f7c1d9e10",
        "attempt": 2,
        "place": "PodsWithTLS",
        "mechanism": run,
        "unit_at_least": 5000,
        "planned_steps": 150,
        "target_epsilon": "8",
        "delta": "0.00001",
        "accountant": "RDP",
        "steps_charged": charged,
        "steps_recharged": 7,
        "step": min(83, charged),
        "events": charged_events(run, charged),
        "dimension": 98_765,
        "noise_distance": 2.0**-102,
        "aggregation": AggregationStatement("pairwise masks", ("The network is trusted.",), ("Malicious workers.",)),
        "adapter_digest": "sha256:" + "ab" * 32,
        "ledger_head": "cd" * 32,
        "ledger_length": 77,
        "dataset_digest": "ef" * 32,
        "lineage": "claims-2026",
        "model": {"name": "Qwen/Qwen3-0.6B", "weights": "commit:" + "12" * 20},
        "unit_column": "patient",
        "image": "registry.example/tensafe-trainer:0.1@sha256:" + "34" * 32,
        "ray_version": "2.60.0",
    }
    document: dict[str, Any] = json.loads(canonical_json(build_statement(StatementInputs(**(inputs | changes)))))
    return document


def fullest() -> dict[str, Any]:
    """A statement with every part that a statement can have, and the longest list of assumptions."""
    earlier = EarlierSteps(sample_rate="0.064", noise_multiplier="0.9", steps=40)
    return build(
        mechanism={"earlier_steps": (earlier,)},
        target_epsilon="12",
        accountant="PLD",
        private_metrics="Internal",
        evaluation="Public: s3://public/evaluation-of-claims/",
        remarks=("On this machine a kernel rounded, and the noise was drawn again on the processor.",),
        started_from={
            "uri": "s3://clinic/models/triage-2025/final",
            "adapter": "sha256:" + "56" * 32,
            "statement": "sha256:" + "78" * 32,
            "epsilon": "4.5",
            "delta": "0.00001",
            "noiseDistance": "1.5e-21",
        },
        aggregation=AggregationStatement(
            "pairwise masks",
            (
                "Each worker shares masks with 32 of the 255 others, in a random graph that is new at each start of "
                "the workers. Up to 31 workers that combine what they see learn only the sum of the other workers' "
                "vectors.",
                "X25519, HKDF, ChaCha20 and HMAC-SHA-256 are secure.",
            ),
            (
                "A worker that runs other code can leave out its share of the noise.",
                "A worker that sends a wrong share stops the step, and is not identified.",
            ),
        ),
    )


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "user": build,
    "example": lambda: build(mechanism={"unit": "Example"}, unit_column=None),
    "zero-out": lambda: build(mechanism={"adjacency": "ZeroOut"}),
    "not started": lambda: build(charged=0, steps_recharged=0),
    "all charged": lambda: build(charged=160, steps_recharged=10),
    "fullest": fullest,
}


@pytest.fixture(scope="session")
def make() -> Make:
    return build


@pytest.fixture(scope="session", params=sorted(KINDS))
def statement(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One statement of each kind. Tests do not change it."""
    return KINDS[request.param]()


@pytest.fixture(scope="session")
def full() -> dict[str, Any]:
    return fullest()
