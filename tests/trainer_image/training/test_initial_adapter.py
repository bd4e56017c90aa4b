"""`lora.initFrom`: training starts from an earlier adapter, and every epsilon counts what that adapter has spent."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load, save_file

from tensafe_api.accounting.composition import epsilon_of_events, format_epsilon, job_delta
from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.mechanism import PrivacyEvent
from tensafe_api.statement.contents import UNIT_DEFINITIONS, canonical_json, digest, recompute_epsilon
from tensorguard.checkpoint.encryption import read_decrypted, read_identities
from tensorguard.cli.main import main
from tensorguard.ledger.file import FileLedger
from tensorguard.signing.keys import new_identity, write_new
from tensorguard.training import initial_adapter
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import RUN_LOG
from tensorguard.training.worker import Worker
from tests.support.trainer.rank_harness import Job, records

ALONE = ("spec.cluster.workers=1", "spec.checkpoint.everySteps=2")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that has ended, with an adapter of four steps."""
    job = Job.make(tmp_path_factory.mktemp("earlier") / "run", *ALONE, "spec.training.steps=4")
    job.train_alone()
    assert job.ended().reason == "Completed"
    return job


def final(job: Job) -> Path:
    return job.directory / "checkpoints" / "final"


def spent(job: Job) -> list[dict[str, Any]]:
    mechanism = job.plan.mechanism
    steps = json.loads((final(job) / "statement.json").read_text())["claim"]["steps"]
    return [{"sampleRate": mechanism.sample_rate, "noiseMultiplier": mechanism.noise_multiplier, "steps": steps}]


def job_from(tmp_path: Path, folder: Path, events: list[dict[str, Any]], *overrides: str) -> Job:
    start = json.dumps({"uri": str(folder), "earlierSteps": events})
    short = ("spec.training.steps=2", "spec.privacy.targetEpsilon=40", f"spec.lora.initFrom={start}")
    return Job.make(tmp_path / "run", *ALONE, *short, *overrides)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load((folder / "adapter_model.safetensors").read_bytes())


def same_model(earlier: Job, later: Job) -> None:
    """The harness writes the same random model for each job, so its digest is the same."""
    assert (earlier.directory / "model/model.safetensors").read_bytes() == (
        later.directory / "model/model.safetensors"
    ).read_bytes()


@pytest.mark.slow
def test_training_starts_from_the_earlier_weights(earlier: Job, tmp_path: Path) -> None:
    """With a learning rate of almost 0 the weights stay where they started."""
    still = ("spec.training.learningRate=1e-30", "spec.training.weightDecay=0")
    job = job_from(tmp_path, final(earlier), spent(earlier), *still)
    same_model(earlier, job)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    before, after = weights(final(earlier)), weights(final(job))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(tensor.any() for name, tensor in after.items() if "lora_B" in name)


@pytest.mark.slow
def test_every_epsilon_counts_the_earlier_steps(earlier: Job, tmp_path: Path) -> None:
    job = job_from(tmp_path, final(earlier), spent(earlier))
    assert job.plan.epsilon(0) > 0
    job.train_alone()
    mechanism = job.plan.mechanism
    own = {"sampleRate": mechanism.sample_rate, "noiseMultiplier": mechanism.noise_multiplier, "steps": 2}
    events = [PrivacyEvent.model_validate(each) for each in (*spent(earlier), own)]
    composed = format_epsilon(epsilon_of_events(events, job_delta(job.plan.delta), job.plan.accountant))
    statement = json.loads((final(job) / "statement.json").read_text())
    assert statement["claim"]["epsilon"] == statement["spent"]["epsilon"] == composed == recompute_epsilon(statement)
    assert statement["claim"]["covers"].endswith("and 4 steps of the trainings of the adapter that it started from")
    assert statement["startedFrom"]["statement"] == digest((final(earlier) / "statement.json").read_bytes())
    assert [event["steps"] for event in statement["events"]] == [4, 2]
    status = job.status()
    assert status.privacy is not None
    assert status.privacy.epsilon_spent == composed
    page = (final(job) / "statement.md").read_text()
    assert "started from" in page and str(final(earlier)) in page
    assert main(["verify", str(final(job)), "--ledger", str(job.directory)]) == 0


@pytest.mark.slow
def test_third_training_counts_both_earlier_ones(earlier: Job, tmp_path: Path) -> None:
    second = job_from(tmp_path / "second", final(earlier), spent(earlier))
    second.train_alone()
    third = job_from(tmp_path / "third", final(second), [*spent(earlier), *spent(second)])
    third.train_alone()
    first_distance, both = (
        float(json.loads((final(job) / "statement.json").read_text())["startedFrom"]["noiseDistance"])
        for job in (second, third)
    )
    mechanism = json.loads((final(earlier) / "statement.json").read_text())["mechanism"]
    draws = mechanism["dimension"] * mechanism["workers"] * 4
    assert first_distance == pytest.approx(draws * float(mechanism["noiseDistancePerDraw"]), rel=1e-3)
    assert both > first_distance > 0
    assert third.ended().reason == "Completed", third.ended().message
    assert third.plan.epsilon(2) > second.plan.epsilon(2) > earlier.plan.epsilon(4)


@pytest.mark.slow
def test_adapter_of_an_unfinished_job_counts_with_all_steps_that_it_claims(earlier: Job, tmp_path: Path) -> None:
    """A checkpoint after two of four steps: that the person stopped there may depend on what the steps revealed."""
    folder = next((earlier.directory / "checkpoints").glob("step-000002-*"))
    statement = json.loads((folder / "statement.json").read_text())
    assert (statement["events"][0]["steps"], statement["claim"]["steps"]) == (2, 4)
    job = job_from(tmp_path, folder, [{**spent(earlier)[0], "steps": 2}])
    job.train_alone()
    assert "steps: 4}" in job.ended().message
    job = job_from(tmp_path / "again", folder, spent(earlier))
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message


def claim_less(folder: Path) -> None:
    """Claim fewer steps than the earlier manifest has, with a manifest that fits."""
    rewrite(folder, lambda statement: statement["events"][-1].update(steps=9))


def another_adapter(folder: Path) -> None:
    rewrite(folder, lambda statement: statement["hashes"].update(adapter="sha256:" + "0" * 64))


def another_base(folder: Path) -> None:
    rewrite(folder, lambda statement: statement["model"].update(weights="sha256:" + "0" * 64))


def another_unit(folder: Path) -> None:
    rewrite(folder, lambda statement: statement["claim"].update(unit="User"))


def counted_units(folder: Path) -> None:
    rewrite(folder, lambda statement: statement["claim"].update(adjacency="ZeroOut"))


def another_schema(folder: Path) -> None:
    rewrite(folder, lambda statement: statement.update(schema="other/v9"))


def rewrite(folder: Path, change: Any) -> None:
    statement = json.loads((folder / "statement.json").read_text())
    change(statement)
    content = canonical_json(statement)
    (folder / "statement.json").write_bytes(content)
    listing = json.loads((folder / "manifest.json").read_text())
    listing["files"]["statement.json"] = {"sha256": digest(content), "size": len(content)}
    (folder / "manifest.json").write_bytes(canonical_json(listing))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (claim_less, "earlierSteps must be those of the statement"),
        (another_adapter, "is that of another adapter"),
        (another_base, "the base model of the earlier job is sha256:0000"),
        (another_unit, "the unit of the earlier job is User"),
        (counted_units, "the adjacency of the earlier job is ZeroOut"),
        (another_schema, "its statement has the schema other/v9"),
        *(
            (partial(rewrite, change=change), f"cannot be used, because of its {field}")
            for field, change in {
                "mechanism": lambda statement: statement.pop("mechanism"),
                "events": lambda statement: statement.update(events=[]),
                "events.0.steps": lambda statement: statement["events"][0].update(steps=-1),
                "claim.steps": lambda statement: statement["claim"].pop("steps"),
                "model": lambda statement: statement.update(model="not known"),
                "hashes": lambda statement: statement.update(hashes=[]),
                "mechanism.dimension": lambda statement: statement["mechanism"].update(dimension=0),
                "mechanism.noiseDistancePerDraw": lambda statement: statement["mechanism"].update(
                    noiseDistancePerDraw="nan"
                ),
                "startedFrom.noiseDistance": lambda statement: statement.update(startedFrom={"noiseDistance": "-1"}),
            }.items()
        ),
        (
            partial(rewrite, change=lambda statement: statement.update(startedFrom={})),
            "cannot be used, because of its startedFrom.noiseDistance",
        ),
        (lambda folder: shutil.rmtree(folder), "is not a checkpoint of a TenSafe job, it has no manifest.json"),
    ],
)
def test_adapter_that_does_not_fit_is_refused_before_the_ledger_is_acquired(
    earlier: Job, tmp_path: Path, change: Any, message: str
) -> None:
    folder = tmp_path / "copy" / "final"
    shutil.copytree(final(earlier), folder)
    change(folder)
    job = job_from(tmp_path, folder, spent(earlier))
    job.train_alone()
    assert job.ended().reason == "InvalidManifest"
    assert message in job.ended().message
    assert job.ledger().attempt == 0


def test_checkpoint_that_lists_a_file_outside_it_is_refused(earlier: Job, tmp_path: Path) -> None:
    folder = tmp_path / "copy" / "final"
    shutil.copytree(final(earlier), folder)
    listing = json.loads((folder / "manifest.json").read_text())
    listing["files"]["../../secret"] = {"sha256": digest(b"secret"), "size": 6}
    (folder / "manifest.json").write_bytes(canonical_json(listing))
    job = job_from(tmp_path, folder, spent(earlier))
    job.train_alone()
    assert job.ended().reason == "CheckpointCorrupt"
    assert "unreadable manifest.json" in job.ended().message
    assert job.ledger().attempt == 0


def users(column: str) -> str:
    return f"spec.dataset.unit={{kind: User, column: {column}, atLeast: 60, maxExamplesPerUnit: 4}}"


@pytest.mark.slow
def test_users_of_the_earlier_training_must_be_those_of_this_one(tmp_path: Path) -> None:
    """For a doctor, the steps that protected each patient are steps in which twenty units differ."""
    rows = [
        {**row, "patient": f"p{number // 2}", "doctor": f"d{number // 40}"} for number, row in enumerate(records(240))
    ]
    first = Job.make(tmp_path / "first", *ALONE, "spec.training.steps=2", users("patient"), rows=rows)
    first.train_alone()
    assert first.ended().reason == "Completed", first.ended().message

    def then(name: str, *changes: str, **start: str) -> Job:
        uri = {"uri": str(final(first)), "earlierSteps": spent(first), **start}
        more = ("spec.training.steps=2", "spec.privacy.targetEpsilon=40", f"spec.lora.initFrom={json.dumps(uri)}")
        job = Job.make(tmp_path / name, *ALONE, *more, *changes, rows=rows)
        job.train_alone()
        return job

    other = then("other", users("doctor"))
    assert other.ended().reason == "InvalidManifest" and other.ledger().attempt == 0
    assert "those of its column patient" in other.ended().message
    same = then("same", users("patient"))
    assert same.ended().reason == "Completed", same.ended().message
    statement = json.loads((final(same) / "statement.json").read_text())
    assert statement["claim"]["unitColumn"] == "patient"
    assert any("users of the earlier trainings are those of this one" in each for each in statement["assumed"])
    renamed = then("renamed", users("doctor"), unitColumn="patient")  # the author's word that the two are the same
    assert renamed.ended().reason == "Completed", renamed.ended().message


def interrupted(tmp_path: Path, folder: Path, events: list[dict[str, Any]]) -> Job:
    """A job of four steps that was stopped after two, with a checkpoint."""
    job = job_from(tmp_path, folder, events, "spec.training.steps=4")
    save = Worker._save

    def save_and_stop(worker: Worker, *, final: bool = False) -> None:
        save(worker, final=final)
        worker._stop.request()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "_save", save_and_stop)
        job.train_alone()
    assert job.ended().reason == "Interrupted"
    return job


@pytest.mark.slow
def test_resumed_job_needs_its_own_checkpoint_only(earlier: Job, tmp_path: Path) -> None:
    """The earlier one may be removed: that of a job that still runs is, after some steps."""
    folder = tmp_path / "copy" / "final"
    shutil.copytree(final(earlier), folder)
    job = interrupted(tmp_path, folder, spent(earlier))
    shutil.rmtree(folder)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    statements = [json.loads(path.read_text()) for path in (job.directory / "checkpoints").glob("*/statement.json")]
    assert len(statements) > 1
    assert len({json.dumps(statement["startedFrom"]) for statement in statements}) == 1


def test_job_is_not_resumed_from_another_adapter(earlier: Job, tmp_path: Path) -> None:
    """Its statement would name an adapter that the training did not start from."""
    job = interrupted(tmp_path, final(earlier), spent(earlier))
    other = tmp_path / "copy" / "final"
    shutil.copytree(final(earlier), other)
    manifest = dump_manifest(job.job, format="json").replace(str(final(earlier)), str(other))
    job.job, job.plan = resolve_job(load_manifest(manifest))
    job.train_alone()
    assert job.ended().reason == "ConfigurationChanged"
    assert f"this job started from {final(earlier)}" in job.ended().message


@pytest.mark.slow
def test_forged_checkpoint_of_the_job_does_not_change_what_it_started_from(earlier: Job, tmp_path: Path) -> None:
    """What the job's own statements say counts only if the ledger knows the checkpoint."""
    job = interrupted(tmp_path, final(earlier), spent(earlier))
    newest = max((job.directory / "checkpoints").glob("step-*"))
    forged = newest.parent / "step-000009-a9i9"
    shutil.copytree(newest, forged)
    rewrite(forged, lambda statement: statement["startedFrom"].update(noiseDistance="0.0"))
    job.train_alone()
    assert job.ended().reason in ("ConfigurationChanged", "LedgerCorrupt")
    assert job.ledger().steps_charged == 2


@pytest.mark.slow
def test_job_that_was_killed_before_its_checkpoint_was_recorded_reads_the_adapter_again(
    earlier: Job, tmp_path: Path
) -> None:
    job = job_from(tmp_path, final(earlier), spent(earlier), "spec.training.steps=4")

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileLedger, "record_checkpoint", fail)
        with pytest.raises(KeyboardInterrupt):
            job.train_alone()
    assert job.store().names() and not job.ledger().checkpoints
    job.train_alone(restart=True)
    assert job.ended().reason == "Completed", job.ended().message
    assert job.ledger().steps_charged == 6


@pytest.mark.parametrize("key", ["steps", "noiseMultiplier", "sampleRate"])
def test_refusal_shows_the_steps_to_write(earlier: Job, tmp_path: Path, key: str) -> None:
    (right,) = spent(earlier)
    smaller = {"steps": 3, "noiseMultiplier": "9", "sampleRate": "0.001"}
    job = job_from(tmp_path, final(earlier), [{**right, key: smaller[key]}])
    job.train_alone()
    _, _, text = job.ended().message.partition("write earlierSteps: ")
    assert yaml.safe_load(text) == [right]


def test_weights_that_were_changed_are_refused(earlier: Job, tmp_path: Path) -> None:
    folder = tmp_path / "copy" / "final"
    shutil.copytree(final(earlier), folder)
    save_file({name: tensor + 1 for name, tensor in weights(folder).items()}, folder / "adapter_model.safetensors")
    job = job_from(tmp_path, folder, spent(earlier))
    job.train_alone()
    assert job.ended().reason == "CheckpointCorrupt"
    assert not (job.directory / RUN_LOG).read_text().count('"step"')


@pytest.mark.parametrize("override", ["spec.lora.rank=4", "spec.lora.alpha=9", "spec.lora.targetModules=[query]"])
def test_other_lora_fields_are_refused(earlier: Job, tmp_path: Path, override: str) -> None:
    job = job_from(tmp_path, final(earlier), spent(earlier), override)
    job.train_alone()
    assert job.ended().message.startswith("spec.lora")
    assert job.ledger().attempt == 0


@pytest.fixture(scope="module")
def encrypted_earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """As `earlier`, with an adapter that is encrypted, and the file of the identity."""
    folder = tmp_path_factory.mktemp("encrypted")
    content, recipient = new_identity()
    write_new(folder / "keys", {"identity": (content, 0o600)})
    encryption = f"spec.checkpoint.encryption={{recipients: [{recipient}]}}"
    job = Job.make(folder / "run", *ALONE, "spec.training.steps=4", encryption)
    job.train_alone()
    assert job.ended().reason == "Completed"
    return job, folder / "keys" / "identity"


@pytest.mark.slow
def test_training_starts_from_an_encrypted_adapter(encrypted_earlier: tuple[Job, Path], tmp_path: Path) -> None:
    before, identity = encrypted_earlier
    still = ("spec.training.learningRate=1e-30", "spec.training.weightDecay=0")
    job = job_from(tmp_path, final(before), spent(before), *still)
    job.identity = identity
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    started = read_decrypted(before.store(), "final", read_identities(identity))["adapter_model.safetensors"]
    after = weights(final(job))
    assert all(torch.equal(tensor, after[name]) for name, tensor in load(started).items())


@pytest.mark.slow
def test_encrypted_adapter_without_an_identity_is_refused(encrypted_earlier: tuple[Job, Path], tmp_path: Path) -> None:
    before, _ = encrypted_earlier
    job = job_from(tmp_path, final(before), spent(before))
    job.train_alone()
    assert (job.ended().reason, job.ledger().steps_charged) == ("DecryptionFailed", 0)
    assert "final is encrypted, and there is no identity" in job.ended().message


@pytest.mark.slow
def test_identity_for_the_earlier_adapter_alone_suffices(encrypted_earlier: tuple[Job, Path], tmp_path: Path) -> None:
    """The new adapter is for others. A resume would need their identity."""
    before, identity = encrypted_earlier
    others = f"spec.checkpoint.encryption={{recipients: [{new_identity()[1]}]}}"
    job = job_from(tmp_path, final(before), spent(before), others)
    job.identity = identity
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("earlier", "missing", "refused"), [(1, "Refuse", True), (1, "OwnUnit", False), (0, "Refuse", False)]
)
def test_own_units_of_the_earlier_job_are_stated_or_refused(
    tmp_path: Path, earlier: int, missing: str, refused: bool
) -> None:
    """The statement of this job counts the earlier steps, in which such a record was a unit by itself."""
    unit = {"kind": "User", "column": "patient", "atLeast": 200, "missing": missing}
    steps = {"sampleRate": "0.01", "noiseMultiplier": "2", "steps": 2}
    start = f"spec.lora.initFrom={json.dumps({'uri': 's3://a/b', 'earlierSteps': [steps]})}"
    rows = [{**row, "patient": number} for number, row in enumerate(records(240))]
    job = Job.make(tmp_path / "job", *ALONE, f"spec.dataset.unit={json.dumps(unit)}", start, rows=rows)
    claim = initial_adapter._Claim.model_construct(
        unit_column="patient", unit_definition=UNIT_DEFINITIONS["User"][earlier]
    )
    if not refused:
        initial_adapter._compare_users(job.job.spec, claim)
        return
    with pytest.raises(AttemptFailed, match=r"set spec\.dataset\.unit\.missing to OwnUnit"):
        initial_adapter._compare_users(job.job.spec, claim)
