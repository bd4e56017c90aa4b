"""The quickstart's notes: the same bytes for the same seed, fit for its manifest, and not trivially learnable."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tensafe_api.manifest.text import load_manifest

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture(scope="module")
def make_data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart_make_data", EXAMPLE / "make_data.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_same_seed_same_bytes(make_data: ModuleType, tmp_path: Path) -> None:
    for place in ("first", "second"):
        make_data.main(["--rows", "50", "--out", str(tmp_path / place)])
    make_data.main(["--rows", "50", "--out", str(tmp_path / "other"), "--seed", "8"])
    first, second, other = ((tmp_path / place / "train.jsonl").read_bytes() for place in ("first", "second", "other"))
    assert first == second
    assert first != other


def test_rows_fields_and_lengths(make_data: ModuleType, tmp_path: Path) -> None:
    make_data.main(["--rows", "30", "--out", str(tmp_path)])
    train = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(train) == 30
    assert len((tmp_path / "eval.jsonl").read_text().splitlines()) == make_data.EVALUATION_ROWS
    for row in train:
        assert set(row) == {"text", "label", "patient_id"}
        assert len(row["text"].split()) <= make_data.WORD_LIMIT
        assert "\n" not in row["text"]


@pytest.mark.slow
def test_manifest_fits_the_data(make_data: ModuleType) -> None:
    job = load_manifest(EXAMPLE / "job.yaml")
    assert sorted(job.spec.model.label_names) == sorted(make_data.DEPARTMENTS)
    assert job.spec.model.num_labels == len(make_data.DEPARTMENTS)
    patients = {row["patient_id"] for row in make_data.notes(4200, seed=7)}
    assert job.spec.dataset.unit.at_least <= 4200
    assert len(patients) >= 3000, "job.yaml offers the unit User with atLeast: 3000"


@pytest.mark.slow
def test_departments_are_balanced_and_some_notes_went_astray(make_data: ModuleType) -> None:
    rows = make_data.notes(2000, seed=1)
    shares = Counter(row["label"] for row in rows)
    assert min(shares.values()) > 200

    of = {complaint: department for department, all_of in make_data.COMPLAINTS.items() for complaint in all_of}
    clear = [
        (row["label"], department)
        for row in rows
        for complaint, department in of.items()
        if complaint.lower() in row["text"].lower()
    ]
    astray = sum(label != department for label, department in clear) / len(clear)
    assert 0.01 < astray < 0.06


def test_evaluation_is_of_other_people(make_data: ModuleType, tmp_path: Path) -> None:
    make_data.main(["--rows", "200", "--out", str(tmp_path)])
    ids = [
        {json.loads(line)["patient_id"] for line in (tmp_path / name).read_text().splitlines()}
        for name in ("train.jsonl", "eval.jsonl")
    ]
    assert ids[0].isdisjoint(ids[1])
