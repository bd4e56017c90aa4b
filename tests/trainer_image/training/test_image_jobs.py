"""Image classification from image files to an adapter that plain peft loads."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load, save_file
from transformers import ViTImageProcessorPil

from tensorguard.cli.summary import _snippet
from tests.support.trainer.image_jobs import IMAGES, images
from tests.support.trainer.rank_harness import Job

SHORT = ("spec.cluster.workers=1", "spec.training.steps=3", "spec.checkpoint.everySteps=2")
PUBLIC = "spec.evaluation={uri: other.jsonl, visibility: Public, everySteps: 20}"


def weights(job: Job) -> dict[str, torch.Tensor]:
    return load(job.store().read("final")["adapter_model.safetensors"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("spec.training.precision=bf16",), id="bf16"),
        pytest.param(("spec.training.gradientCheckpointing=true",), id="checkpointing", marks=pytest.mark.slow),
        pytest.param(("spec.lora.targetModules=[all-linear]",), id="all-linear", marks=pytest.mark.slow),
    ],
)
def test_image_classification_trains(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    job = Job.make(tmp_path / "run", *SHORT, *overrides, kind=IMAGES)
    job.train_alone()
    assert job.ended().reason == "Completed", job.ended().message
    saved = weights(job)
    assert all(tensor.dtype == torch.float32 and torch.isfinite(tensor).all() for tensor in saved.values())
    assert any(tensor.any() for key, tensor in saved.items() if "lora_B" in key)
    assert {"q_proj", "v_proj"} <= {key.split(".")[-3] for key in saved if "lora_B" in key}
    assert saved["base_model.model.classifier.weight"].shape == (3, 32)


@pytest.mark.slow
def test_private_training_learns_the_classes_and_plain_peft_has_the_result(tmp_path: Path) -> None:
    """Chance is a third. ε is 20, and the images are noise but for a brighter channel."""
    faster = ("spec.training.steps=60", "spec.training.learningRate=2e-2")  # the noise of 20 steps can be too much
    names = "spec.model.labelNames=[red, green, blue]"
    rows = [{**row, "label": ("red", "green", "blue")[row["label"]]} for row in images(240)]
    job = Job.make(tmp_path / "run", "spec.cluster.workers=1", *faster, PUBLIC, names, kind=IMAGES, rows=rows)
    job.train_alone()
    *_, evaluation = job.status().evaluations
    assert float(evaluation.metrics()["accuracy"]) > 0.8

    lines = _snippet(job.job, str(job.directory / "checkpoints" / "final"))
    found: dict[str, object] = {}
    with redirect_stdout(io.StringIO()) as shown:
        exec("\n".join(lines), found)
    assert shown.getvalue().strip() in ("red", "green", "blue")
    model, processor, base = found["model"], found["processor"], found["base"]
    right = 0
    for record in images(60, seed=1):
        inputs = processor(Image.open(io.BytesIO(record["image"])), return_tensors="pt")  # type: ignore[operator]
        number = int(model(**inputs).logits.argmax())  # type: ignore[operator]
        right += base.config.id2label[number] == ("red", "green", "blue")[record["label"]]  # type: ignore[attr-defined]
    assert right > 48


@pytest.mark.slow
def test_two_workers_train_and_classifier_starts_from_the_seed(tmp_path: Path) -> None:
    """The checkpoint has no classifier, so both workers must make the same one."""
    job = Job.make(tmp_path / "run", "spec.training.steps=2", kind=IMAGES)
    path = job.directory / "model" / "model.safetensors"
    tensors = {key: value for key, value in load(path.read_bytes()).items() if not key.startswith("classifier")}
    save_file(tensors, path, metadata={"format": "pt"})
    assert job.run() == [0, 0], job.errors()
    assert job.ended().reason == "Completed", job.errors()


def test_image_processor_of_another_size_than_the_model_is_refused(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT, kind=IMAGES)
    ViTImageProcessorPil(size={"height": 48, "width": 32}).save_pretrained(job.directory / "model")
    job.train_alone()
    assert job.ended().reason == "ModelUnsupported"
    assert "reads images of 32 x 32 pixels in 3 channels, but its image processor makes 48 x 32" in job.ended().message
    assert not job.ledger().steps_charged


def test_statement_and_manifest_have_no_length_of_text(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *SHORT, kind=IMAGES)
    spec = json.loads(job.config().job)["spec"]
    assert "maxLength" not in spec["training"] and "overLength" not in spec["dataset"]
