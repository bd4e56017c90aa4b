"""`model.sharding: Workers`: the same adapter as with a whole base on each worker, and only public weights travel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from tensorguard.models.sharded_base import SHARED_PASSES_REMARK
from tests.support.trainer.fault_injection import (
    FailToLoad,
    InexactKernel,
    Instrument,
    KnownSecrets,
    OtherHost,
    ShortTimeout,
    StopDuring,
)
from tests.support.trainer.rank_harness import CAUSAL, CLASSES, Job, JobKind, join, records
from tests.support.trainer.recordings import KeepBatchSizes, KeepFloatTraffic

GPUS = "spec.cluster.worker={gpus: 2, cpus: 2}"
SHORT = ("spec.training.steps=3", "spec.training.microBatchSize=2", "spec.model.sharding=Workers")
LIMIT = 60
"""Seconds after which a rank that waits for another one counts as stuck."""


def weights(job: Job) -> dict[str, torch.Tensor]:
    return load(job.store().read("final")["adapter_model.safetensors"])


def draws(job: Job) -> list[tuple[int, ...]]:
    """How many units each rank drew in each step."""
    texts = [(job.directory / f"draws-{rank}").read_text().split() for rank in range(job.workers)]
    return [tuple(map(int, step)) for step in zip(*texts, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        pytest.param(CAUSAL, ("spec.lora.dropout=0.2",), id="loss-in-chunks-and-dropout"),
        pytest.param(
            CLASSES,
            ("spec.training.gradientCheckpointing=true", "spec.training.precision=bf16"),
            id="checkpointing-and-trained-head",
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param(
                CAUSAL, (f"spec.model.quantization={scheme}", *more), id=f"{scheme}-{name}", marks=pytest.mark.slow
            )
            for scheme, name, more in (
                ("NF4", "fp32", ()),
                ("INT8", "bf16", ("spec.training.precision=bf16",)),
                ("NF4", "checkpointing", ("spec.training.precision=bf16", "spec.training.gradientCheckpointing=true")),
            )
        ),
        pytest.param(
            CAUSAL,
            ("spec.cluster.workers=4", "spec.lora.variant=FrozenA", "spec.lora.targetModules=[all-linear]"),
            id="four-workers",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sharded_base_trains_the_same_adapter(tmp_path: Path, kind: JobKind, overrides: tuple[str, ...]) -> None:
    """Every bit is the same, although the workers draw different numbers of records."""
    sharded = Job.make(tmp_path / "sharded", *SHORT, *overrides, kind=kind)
    codes = join(sharded.start(KnownSecrets(), KeepBatchSizes()), LIMIT)
    assert codes == [0] * sharded.workers, sharded.errors()
    assert sharded.ended().reason == "Completed", sharded.ended().message
    assert any(len({-(-units // 2) for units in step}) > 1 for step in draws(sharded)), "all ran as many passes"

    whole = Job.make(tmp_path / "whole", *SHORT, *overrides, "spec.model.sharding=Replicated", kind=kind)
    whole.shards, whole.digest = sharded.shards, sharded.digest
    assert whole.run(KnownSecrets()) == [0] * whole.workers, whole.errors()
    expected, found = weights(whole), weights(sharded)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert any(tensor.any() for name, tensor in found.items() if "lora_B" in name)


@pytest.mark.slow
def test_gpus_of_a_worker_share_a_base_and_run_as_many_passes_as_they_need(tmp_path: Path) -> None:
    """Two workers with two ranks each. The statement does not say that another worker learns their passes."""
    changes = (*SHORT[:2], GPUS)
    sharded = Job.make(tmp_path / "sharded", *changes, kind=CAUSAL)
    assert join(sharded.start(KnownSecrets(), KeepFloatTraffic()), LIMIT) == [0] * 4, sharded.errors()
    assert sharded.ended().reason == "Completed", sharded.ended().message
    assert SHARED_PASSES_REMARK not in sharded.store().read("final")["statement.json"].decode()
    sent = [set((sharded.directory / f"traffic-{rank}").read_text().splitlines()) for rank in range(4)]
    assert sent[0] == sent[2] != sent[1] == sent[3]  # each pair has the two halves of the base

    whole = Job.make(tmp_path / "whole", *changes, "spec.model.sharding=Replicated", kind=CAUSAL)
    whole.shards, whole.digest = sharded.shards, sharded.digest
    assert whole.run(KnownSecrets()) == [0] * 4, whole.errors()
    expected, found = weights(whole), weights(sharded)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.slow
def test_ranks_of_a_worker_on_different_machines_are_refused(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT[:2], GPUS)
    assert join(job.start(OtherHost(rank=1)), LIMIT) == [0] * 4, job.errors()
    assert job.ended().reason == "ResourcesMissing"
    assert "on different machines" in job.ended().message


@pytest.mark.slow
def test_workers_send_each_other_only_parts_of_the_frozen_weights(tmp_path: Path) -> None:
    """What a rank sends as floating-point numbers is the same in each pass: the embeddings, two layers, the rest."""
    job = Job.make(tmp_path / "run", *SHORT)
    assert join(job.start(KeepFloatTraffic()), LIMIT) == [0, 0], job.errors()
    for rank in range(2):
        sent = (job.directory / f"traffic-{rank}").read_text().splitlines()
        assert len(sent) > 100
        assert len(set(sent)) == 4
        assert {line.split()[0] for line in sent} == {"all_gather_single"}
    assert SHARED_PASSES_REMARK in job.store().read("final")["statement.json"].decode()


@pytest.mark.slow
def test_rank_without_a_record_takes_part_in_all_passes(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    job.shards = (job.shards[0], Job.make(tmp_path / "one", rows=records(1)).shards[0])
    assert join(job.start(KeepBatchSizes()), LIMIT) == [0, 0], job.errors()
    assert any(step[1] == 0 for step in draws(job))
    assert job.ended().reason == "Completed"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_stop_that_one_rank_sees_leaves_no_rank_waiting(tmp_path: Path, rank: int) -> None:
    job = Job.make(tmp_path / "run", *SHORT)
    assert join(job.start(StopDuring(nth=2, rank=rank, seen_by_all=False)), LIMIT) == [0, 0], job.errors()
    assert job.ended().reason == "Interrupted"
    assert job.revealed() == [1, 1]


@pytest.mark.slow
def test_kernel_that_is_inexact_on_one_rank_ends_the_attempt_on_all(tmp_path: Path) -> None:
    """Ranks that share the base try the same numbers of records at once."""
    job = Job.make(tmp_path / "run", *SHORT)
    assert join(job.start(InexactKernel(rank=1, error=1e-6)), LIMIT) == [0, 0], job.errors()
    assert job.ended().reason == "ModelUnsupported"
    assert job.revealed() == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["spec.model.sharding=Workers", pytest.param(GPUS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(
            InexactKernel(rank=1, error=0.5), "which is more than rounding", id="inexact-kernel", marks=pytest.mark.slow
        ),
        *(
            pytest.param(FailToLoad(rank=1, function=function), "there is no folder of the test", id=name, marks=marks)
            for function, name, marks in (
                ("resolve_model", "no-model", [pytest.mark.slow]),
                ("find_initial_adapter", "no-adapter", [pytest.mark.slow]),
                ("find_output_head", "no-output-head", []),  # the one of these faults that meets a gathering of weights
            )
        ),
    ],
)
def test_rank_that_fails_alone_while_it_starts_leaves_no_rank_waiting(
    tmp_path: Path, sharing: str, fault: Instrument, message: str
) -> None:
    """Each rank says why, although the others wait for its part of the base."""
    job = Job.make(tmp_path / "run", *SHORT[:2], sharing, kind=CAUSAL)
    assert join(job.start(fault, ShortTimeout(5)), LIMIT) == [0] * job.workers, job.errors()
    assert job.ended().reason in ("ModelUnsupported", "ModelUnavailable")
    assert message in job.ended().message
    assert job.ledger().attempt == 0


@pytest.mark.slow
def test_evaluation_with_fewer_batches_than_ranks_leaves_no_rank_waiting(tmp_path: Path) -> None:
    evaluation = ("spec.evaluation.uri=public.jsonl", "spec.evaluation.visibility=Public")
    job = Job.make(tmp_path / "run", *SHORT, *evaluation)
    public = Job.make(tmp_path / "public", rows=records(3)).shards[0]
    job.shards[0].replace(tmp_path / "shard")
    public.replace(job.shards[0])  # the harness evaluates on the first shard
    assert join(job.start(), LIMIT) == [0, 0], job.errors()
    assert job.ended().reason == "Completed"
