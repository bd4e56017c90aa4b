"""What is frozen is computed once for each record, and no bit of the trained adapter changes by that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensafe_api.manifest.text import load_manifest
from tensorguard.models.frozen_prefix import FrozenPrefix, StateRows
from tensorguard.privacy.stream import SecretStream
from tensorguard.training import setup
from tensorguard.training.run_log import Preparing
from tensorguard.training.stop_signal import STOP_FILE
from tests.support.trainer.families import of_family, same, weights
from tests.support.trainer.fault_injection import KnownSecrets, StopDuring, replace_attribute
from tests.support.trainer.image_jobs import IMAGES
from tests.support.trainer.rank_harness import CAUSAL, CLASSES, TAGS, Job, JobKind

UPPER = "spec.lora.layers=[1]"
ALL_LINEAR = "spec.lora.targetModules=[all-linear]"
LONG = "spec.training.steps=24"
OFF = "spec.training.frozenPrefix=Off"
FAMILIES: dict[str, tuple[JobKind, dict[str, Any]]] = {
    "Roberta": (CLASSES, {}),
    "ModernBert": (CLASSES, {}),
    "DebertaV2": (CLASSES, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "ConvBert": (CLASSES, {"embedding_size": 32, "num_hidden_layers": 3}),
    "Longformer": (CLASSES, {"attention_window": 12, "num_hidden_layers": 3}),
    "Qwen3": (CAUSAL, {"num_key_value_heads": 1, "head_dim": 16}),
    "GPT2": (CAUSAL, {}),
}


def family(name: str) -> JobKind:
    kind, more = FAMILIES[name]
    return of_family(name, kind, **more)


KINDS: dict[str, Callable[[], JobKind]] = {
    "Bert": lambda: CLASSES,
    "Bert-tags": lambda: TAGS,
    "Llama": lambda: CAUSAL,
    "ViT": lambda: IMAGES,
    **{name: lambda name=name: family(name) for name in FAMILIES if name not in ("ConvBert", "Longformer")},  # type: ignore[misc]
}


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """For each time that states were computed in this process: the files that are in the run's private folder then."""
    found: list[list[Path]] = []
    fill = StateRows.fill

    def filling(rows: StateRows, shard: Any, batches: Any, folder: Path) -> Iterator[int]:
        yield from fill(rows, shard, batches, folder)
        found.append([path for path in folder.iterdir() if "state" in path.name])

    monkeypatch.setattr(StateRows, "fill", filling)
    monkeypatch.setattr(setup, "SecretStream", lambda: SecretStream(bytes(32)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", KINDS)
def test_adapter_is_the_same_with_and_without_states(
    tmp_path: Path, name: str, precision: str, fills: list[list[Path]]
) -> None:
    kind = KINDS[name]()
    # DeBERTa applies its keys and queries to a table of positions, too: they have no gradient for each record.
    targets = "spec.lora.targetModules=[dense]" if name == "DebertaV2" else ALL_LINEAR
    changes = (UPPER, targets, LONG, f"spec.training.precision={precision}", "spec.cluster.workers=1")
    with_states = Job.make(tmp_path / "with", *changes, kind=kind)
    with_states.train_alone()
    assert fills == [[]]  # their file has no name
    without = Job.make(tmp_path / "without", *changes, OFF, kind=kind)
    without.shards, without.digest = with_states.shards, with_states.digest
    without.train_alone()
    assert len(fills) == 1
    found = weights(with_states)
    assert same(found, weights(without))
    assert any(tensor.any() for key, tensor in found.items() if "lora_B" in key)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CLASSES, CAUSAL, IMAGES], ids=["Bert", "Llama", "ViT"])
def test_layers_that_are_computed_again_in_the_backward_pass_train_the_same_adapter(
    tmp_path: Path, kind: JobKind, fills: list[list[Path]]
) -> None:
    changes = (UPPER, LONG, "spec.training.gradientCheckpointing=true", "spec.cluster.workers=1")
    with_states = Job.make(tmp_path / "with", *changes, kind=kind)
    with_states.train_alone()
    assert fills
    without = Job.make(tmp_path / "without", *changes, OFF, kind=kind)
    without.shards, without.digest = with_states.shards, with_states.digest
    without.train_alone()
    assert same(weights(with_states), weights(without))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("ConvBert", "on this machine, a record's gradient would change", id="layers-that-read-padding"),
        pytest.param("Longformer", "the trained layers of this model need more", id="layers-that-pad-by-themselves"),
    ],
)
def test_layers_that_need_more_than_states_are_computed_in_every_step(
    tmp_path: Path, name: str, why: str, fills: list[list[Path]]
) -> None:
    """With one record at once, too, in whose dummy batch nothing would be padded."""
    job = Job.make(
        tmp_path / "run",
        "spec.lora.layers=[1, 2]",
        LONG,
        "spec.lora.targetModules=[intermediate.dense]",
        "spec.training.microBatchSize=1",
        "spec.cluster.workers=1",
        kind=family(name),
    )
    job.train_alone()
    assert weights(job) and not fills
    (said,) = [record.what for record in job.records() if isinstance(record, Preparing)]
    assert said.startswith(f"Computing the frozen layers in every step: {why}")


@dataclass(frozen=True)
class OnRank:
    """Replaces `StateRows.fill`, or the free disk, on one rank."""

    rank: int
    stops: bool = False

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return
        if not self.stops:
            replace_attribute(setup.shutil, "disk_usage", lambda _: SimpleNamespace(free=0, total=1))
            return
        fill = StateRows.fill

        def stopping(rows: StateRows, *args: Any) -> Iterator[int]:
            for records in fill(rows, *args):
                (directory / STOP_FILE).touch()
                yield records

        replace_attribute(StateRows, "fill", stopping)


@pytest.mark.slow
def test_rank_without_states_trains_beside_one_with_them(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "some", UPPER, LONG)
    assert job.run(KnownSecrets(), OnRank(1)) == [0, 0], job.errors()
    whole = Job.make(tmp_path / "none", UPPER, LONG, OFF)
    whole.shards, whole.digest = job.shards, job.digest
    assert whole.run(KnownSecrets()) == [0, 0], whole.errors()
    assert same(weights(job), weights(whole))


@pytest.mark.slow
def test_stop_while_states_are_computed_charges_nothing_and_the_run_resumes(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", UPPER, LONG, "spec.training.microBatchSize=1")
    assert job.run(OnRank(1, stops=True)) == [0, 0], job.errors()
    assert (job.ended().reason, job.ledger().steps_charged) == ("Interrupted", 0)
    assert job.ledger().outcome == "Suspended"
    assert job.run() == [0, 0], job.errors()
    assert weights(job) and job.ledger().steps_charged == 24


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CLASSES, CAUSAL], ids=["classes", "causal"])
def test_resumed_run_of_two_workers_trains_the_same_adapter(tmp_path: Path, kind: JobKind) -> None:
    runs = []
    for name, more in (("with", ()), ("without", (OFF,))):
        job = Job.make(tmp_path / name, UPPER, ALL_LINEAR, LONG, *more, kind=kind)
        if runs:
            job.shards, job.digest = runs[0].shards, runs[0].digest
        assert job.run(KnownSecrets(), StopDuring(5)) == [0, 0], job.errors()
        assert job.ended().reason == "Interrupted"
        assert job.run(KnownSecrets()) == [0, 0], job.errors()
        runs.append(job)
    assert same(weights(runs[0]), weights(runs[1]))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((), id="all-layers"),
        pytest.param((UPPER, "spec.lora.modulesToSave=[word_embeddings]"), id="embeddings"),
        pytest.param((UPPER, "spec.training.steps=4"), id="too-few-passes"),
        pytest.param((UPPER, OFF), id="off"),
    ],
)
def test_states_are_not_computed_where_nothing_can_be_left_out(
    tmp_path: Path, changes: tuple[str, ...], fills: list[list[Path]]
) -> None:
    job = Job.make(tmp_path / "run", "spec.cluster.workers=1", "spec.training.expectedBatchSize=60", *changes)
    job.train_alone()
    assert weights(job) and not fills


def test_states_are_not_computed_where_they_do_not_fit_on_the_disk(
    tmp_path: Path, fills: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000))
    job = Job.make(tmp_path / "run", UPPER, LONG, "spec.cluster.workers=1")
    job.train_alone()
    assert weights(job) and not fills
    said = [record.what for record in job.records() if isinstance(record, Preparing)]
    assert said == [
        "Computing the frozen layers in every step: their results would take more than half of the disk "
        "that is free for this worker"
    ]


@pytest.mark.parametrize(
    ("place", "changes", "expected"),
    [
        pytest.param("OneMachine", (), 20.0, id="two-processes-on-one-machine"),
        pytest.param("Pods", (), 32.5, id="a-pod-leaves-what-the-kubelet-wants"),
        pytest.param("Pods", ("spec.cluster.worker.ephemeralStorage=30Mi",), 15.0, id="a-pod-with-a-request"),
        pytest.param("Pods", ("spec.cluster.worker.gpus=5",), 6.5, id="five-processes-in-a-pod"),
    ],
)
def test_states_leave_half_of_the_disk_that_is_free_for_a_worker(
    place: str, changes: tuple[str, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda _: SimpleNamespace(free=80 << 20, total=100 << 20))
    job = load_manifest(CLASSES.manifest, ["spec.cluster.workers=2", *changes])
    config: Any = SimpleNamespace(place=place, private_directory="")
    assert setup._disk_for_states(job, config) == pytest.approx(expected * 2**20)


@pytest.mark.slow
def test_blocks_that_hand_on_something_else_are_all_computed(
    tmp_path: Path, fills: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that do not give the same gradients are not used: the check at the start of a run notices it."""
    enter = FrozenPrefix._enter

    def rounding(prefix: FrozenPrefix, block: Any, args: Any, kwargs: Any) -> Any:
        changed = enter(prefix, block, args, kwargs)
        if changed is None:
            return None
        (states, *others), kwargs = changed
        return (states.nextafter(states.new_tensor(9.0)), *others), kwargs

    monkeypatch.setattr(FrozenPrefix, "_enter", rounding)
    job = Job.make(tmp_path / "run", UPPER, "spec.cluster.workers=1", LONG)
    job.train_alone()
    assert weights(job) and not fills
