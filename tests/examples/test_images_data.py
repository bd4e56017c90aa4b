"""The images example: the same records for the same seed, a manifest that fits them, and a training that learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tensafe_api.manifest.text import load_manifest
from tensorguard.data.images import image_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "images"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("images_make_data", EXAMPLE / "make_model_and_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_same_seed_same_records(make: ModuleType) -> None:
    assert make.images(20, 7) == make.images(20, 7) != make.images(20, 8)


def test_manifest_fits_the_data(make: ModuleType) -> None:
    job = load_manifest(EXAMPLE / "job.yaml")
    assert job.spec.model.label_names == make.TEXTURES
    assert job.spec.dataset.unit.at_least <= make.PRIVATE_IMAGES
    records = make.images(60, 1)
    assert set(job.spec.dataset.columns.given().values()) == set(records[0])
    assert {record["label"] for record in records} == set(make.TEXTURES)
    assert all(image_file(record["image"]).startswith(b"\x89PNG") for record in records)


@pytest.mark.ray
def test_tensafe_run_trains_the_example_and_its_last_lines_run(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorguard.cli.main import main

    monkeypatch.setattr(make, "PRETRAINING_STEPS", 2)
    monkeypatch.setattr(make, "PUBLIC_IMAGES", 64)
    make.main(["--out", str(tmp_path)])
    (tmp_path / "job.yaml").write_text((EXAMPLE / "job.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    output = tmp_path / "out"
    shorter = ("--set", "spec.training.steps=2", "--set", "spec.cluster.workers=1")
    assert main(["run", str(tmp_path / "job.yaml"), "--output-dir", str(output), *shorter]) == 0
    shown = capsys.readouterr()
    text = shown.out + shown.err
    code = text.split("Load the adapter:")[1].split("  adapter ")[0]
    exec("\n".join(line.strip() for line in code.strip().splitlines()), {})
    assert capsys.readouterr().out.strip() in make.TEXTURES
