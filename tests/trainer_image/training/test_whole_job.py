"""A whole job on two ranks: its results are correct, and the ledger, the status and the statements agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from huggingface_hub import ModelCard
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from tensafe_api.statement.contents import digest, recompute_epsilon
from tensorguard.checkpoint.store import MANIFEST
from tensorguard.cli.main import main
from tensorguard.training.run_log import Saved, Stepped
from tests.support.trainer.rank_harness import Job, join
from tests.support.trainer.recordings import KeepWeights

pytestmark = pytest.mark.slow

STEPS = 7


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    job = Job.make(
        tmp_path_factory.mktemp("whole") / "run",
        f"spec.training.steps={STEPS}",
        "spec.checkpoint.everySteps=2",
        "spec.checkpoint.keep=2",
        "spec.lora.dropout=0.1",
    )
    assert job.run(KeepWeights()) == [0, 0], job.errors()
    yield job


def checkpoint(job: Job, name: str) -> Path:
    return job.directory / "checkpoints" / name


def test_job_completes_and_every_step_is_charged_once_before_its_reveal(job: Job) -> None:
    ledger = job.ledger()
    assert job.ended().reason == "Completed"
    assert ledger.outcome == "Completed"
    assert [(charge.attempt, charge.steps) for charge in ledger.charges] == [(1, STEPS)]
    assert ledger.steps_recharged == 0
    assert ledger.dataset_digest == job.digest
    assert job.revealed() == [STEPS, STEPS]
    assert [record.step for record in job.records() if isinstance(record, Stepped)] == list(range(1, STEPS + 1))


def test_all_ranks_have_bit_identical_weights_after_each_step(job: Job) -> None:
    weights = [(job.directory / f"weights-{rank}").read_text().split() for rank in range(2)]
    assert weights[0] == weights[1]
    assert len(set(weights[0])) == STEPS


def test_checkpoints_are_published_and_only_the_newest_are_kept(job: Job) -> None:
    published = job.ledger().checkpoints
    assert [(each.step, each.final) for each in published] == [(2, False), (4, False), (6, False), (7, True)]
    store = job.store()
    assert store.names() == ["final", "step-000004-a1i1", "step-000006-a1i1"]
    for each in published[1:]:
        name = each.uri.rsplit("/", 1)[1]
        assert each.digest == digest(checkpoint(job, name).joinpath(MANIFEST).read_bytes())
        assert each.statement_digest == digest(store.read(name, each.digest)["statement.json"])
    saved = [record for record in job.records() if isinstance(record, Saved)]
    assert [record.digest for record in saved] == [each.digest for each in published]


def test_statement_of_each_checkpoint_can_be_recomputed(job: Job) -> None:
    ledger = job.ledger()
    for name, step in (("step-000004-a1i1", 4), ("step-000006-a1i1", 6), ("final", STEPS)):
        files = job.store().read(name)
        document = json.loads(files["statement.json"])
        assert recompute_epsilon(document) == document["spent"]["epsilon"]
        assert document["job"]["step"] == step
        assert step <= document["spent"]["stepsCharged"] <= STEPS
        assert document["claim"]["steps"] == STEPS
        assert any("processes on one machine" in sentence for sentence in document["assumed"])
        assert float(document["claim"]["epsilon"]) >= float(document["spent"]["epsilon"]) > 0
        assert document["hashes"]["adapter"] == digest(files["adapter_model.safetensors"])
        length, head = document["hashes"]["ledgerLength"], document["hashes"]["ledgerHead"]
        assert length < ledger.length
        assert json.loads((job.directory / "ledger.jsonl").read_text().splitlines()[length - 1])["hash"] == head
        assert files["statement.md"].decode().startswith("# Privacy statement of tiny")


def test_adapter_loads_in_plain_peft(job: Job) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(job.directory / "model", num_labels=2)
    inputs = {"input_ids": torch.arange(4, 10).unsqueeze(0), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    with torch.no_grad():
        before = base.eval()(**inputs).logits
        model = PeftModel.from_pretrained(base, checkpoint(job, "final")).eval()
        after = model(**inputs).logits
    saved = load_file(checkpoint(job, "final") / "adapter_model.safetensors")
    loaded = get_peft_model_state_dict(model, save_embedding_layers=False)
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[key], saved[key]) for key in saved)
    assert not torch.equal(before, after)


def test_each_checkpoint_has_a_model_card_of_its_own_claim(job: Job) -> None:
    for name in job.store().names():
        files = job.store().read(name)
        assert "README.md" in json.loads(checkpoint(job, name).joinpath(MANIFEST).read_bytes())["files"]
        card, statement = ModelCard(files["README.md"].decode()), json.loads(files["statement.json"])
        assert card.data.library_name == "peft" and card.data.datasets == "private"
        assert card.data.differential_privacy["epsilon"] == statement["claim"]["epsilon"]
        assert f"| steps in this adapter | {statement['job']['step']} | steps |" in card.text
        # The base model of this job is a folder without a card: no id of the Hub, and no license.
        assert (card.data.base_model, card.data.license, card.data.license_name) == (None, None, None)


def test_peft_keeps_the_claim_in_the_model_card_when_it_saves_there(job: Job, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint(job, "final"), tmp_path / "final")
    before = ModelCard((folder / "README.md").read_text("utf-8"))
    base = AutoModelForSequenceClassification.from_pretrained(job.directory / "model", num_labels=2)
    PeftModel.from_pretrained(base, folder).save_pretrained(folder)
    after = ModelCard((folder / "README.md").read_text("utf-8"))
    assert after.text.startswith(before.text.rstrip())
    assert after.data.differential_privacy == before.data.differential_privacy
    assert after.data.datasets == "private"


def test_statement_of_the_final_checkpoint_is_shown(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statement", str(checkpoint(job, "final")), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["statement"] == json.loads((checkpoint(job, "final") / "statement.json").read_text("utf-8"))
    assert report["curve"][-1] == {"steps": STEPS, "epsilon": report["statement"]["claim"]["epsilon"]}
    assert len(report["checked"]) == 2, "the manifest of the checkpoint lists the statement"


def test_epsilon_in_the_status_is_that_of_dp_accounting_for_the_privacy_events(job: Job) -> None:
    """The privacy events of the ledger are composed step by step, without any arithmetic of this project."""
    status = job.status()
    document = json.loads((checkpoint(job, "final") / "statement.json").read_text())
    (event,) = document["events"]
    sigma, delta = float(event["noiseMultiplier"]), float(document["claim"]["delta"]) * (1 - 1e-6)

    def recomputed(noise: float) -> str:
        settings = document["accounting"]
        accountant = pld.PLDAccountant(value_discretization_interval=float(settings["lossInterval"]))
        noise *= 1 - float(settings["shareOfSigmaForDiscreteNoise"])
        one = dp_accounting.PoissonSampledDpEvent(float(event["sampleRate"]), dp_accounting.GaussianDpEvent(noise))
        for _ in range(event["steps"]):
            accountant.compose(one)
        return str(Decimal(accountant.get_epsilon(delta)).quantize(Decimal("0.001"), ROUND_CEILING).normalize())

    assert event["steps"] == job.ledger().steps_charged
    assert status.privacy.epsilon_spent == status.privacy.epsilon_claimed == recomputed(sigma)
    assert float(status.privacy.epsilon_spent) <= float(job.plan.target_epsilon)
    assert status.checkpoints[-1].epsilon == document["spent"]["epsilon"] == status.privacy.epsilon_spent


def test_status_reports_the_result(job: Job) -> None:
    status = job.status()
    assert status.phase == "Succeeded"
    assert status.progress.percent == 100
    assert status.final_model is not None
    assert status.final_model.uri == checkpoint(job, "final").as_uri()
    assert [attempt.reason for attempt in status.attempts] == ["Completed"]
    kept = [record.step for record in status.checkpoints]
    assert kept == [2, 4, 6, 7][-len(kept) :]
    assert {record.uri.rsplit("/", 1)[1] for record in status.checkpoints} == set(job.store().names())


def test_private_files_are_readable_only_by_their_owner(job: Job) -> None:
    for name in ("ledger.jsonl", "events.jsonl"):
        assert (job.directory / name).stat().st_mode & 0o077 == 0, name


def test_run_log_has_no_private_figure(job: Job) -> None:
    public = {
        "kind",
        "time",
        "attempt",
        "incarnation",
        "step",
        "charged",
        "uri",
        "digest",
        "final",
        "reason",
        "message",
    }
    for line in (job.directory / "events.jsonl").read_text().splitlines():
        assert json.loads(line).keys() <= public


def test_job_of_more_workers_than_neighbours_completes(tmp_path: Path) -> None:
    """34 workers share 240 records. Each masks with 32 of the 33 others."""
    large = Job.make(tmp_path / "run", "spec.cluster.workers=34", "spec.training.steps=2")
    assert join(large.start(KeepWeights()), timeout=600) == [0] * 34, large.errors()
    assert large.ended().reason == "Completed"
    assert large.revealed() == [2] * 34
    assert len({(large.directory / f"weights-{rank}").read_text() for rank in range(34)}) == 1
    document = json.loads(large.store().read("final")["statement.json"])
    assert document["mechanism"]["run"].endswith(", pairwise masks with 32 neighbours")
