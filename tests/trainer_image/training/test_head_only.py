"""`lora.layers: []`: the head alone is trained, on what the frozen model gives, and plain peft loads it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.resolve import resolve_job
from tensorguard.models.frozen_prefix import STATES, FrozenBody, StateRows
from tensorguard.training.unit_gradients import ShardGradients
from tests.support.trainer.families import of_family, same, weights
from tests.support.trainer.fault_injection import KnownSecrets, StopDuring
from tests.support.trainer.image_jobs import IMAGES
from tests.support.trainer.rank_harness import CLASSES, TAGS, Job, JobKind

LAYERS = "spec.lora={layers: []}"
HEAD = (LAYERS, "spec.training.expectedBatchSize=200", 'spec.privacy.targetEpsilon="1e9"')
OFF = "spec.training.frozenPrefix=Off"
KINDS = {"Bert": CLASSES, "Bert-tags": TAGS, "ViT": IMAGES, **{each: of_family(each) for each in ("Roberta", "Llama")}}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_head_is_the_same_with_and_without_states_and_after_a_resume(tmp_path: Path, name: str) -> None:
    runs: list[Job] = []
    for folder, more in (("with", ()), ("without", (OFF,))):
        job = Job.make(tmp_path / folder, *HEAD, *more, kind=KINDS[name])
        if runs:
            job.shards, job.digest = runs[0].shards, runs[0].digest
        assert job.run(KnownSecrets(), StopDuring(5)) == [0, 0], job.errors()
        assert job.run(KnownSecrets()) == [0, 0], job.errors()
        runs.append(job)
    found = weights(runs[0])
    assert same(found, weights(runs[1]))
    assert len(found) == 2 and all(tensor.any() for tensor in found.values())  # weight and bias of one linear layer


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CLASSES, TAGS, IMAGES], ids=["mean-of-tokens", "tokens", "images"])
def test_step_with_states_runs_no_layer_of_the_model(
    tmp_path: Path, kind: JobKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bool] = []
    add_to = ShardGradients.add_to

    def watched(gradients: ShardGradients, *args: Any) -> Any:
        assert isinstance(gradients._form, StateRows)
        assert isinstance(gradients._form._prefix, FrozenBody)
        base = gradients._model.get_base_model()
        body = next(module for module in base.children() if not isinstance(module, torch.nn.Linear))
        hook = body.register_forward_pre_hook(lambda *_: ran.append(True))
        try:
            return add_to(gradients, *args)
        finally:
            hook.remove()

    monkeypatch.setattr(ShardGradients, "add_to", watched)
    job = Job.make(tmp_path, *HEAD, "spec.cluster.workers=1", kind=kind)
    job.train_alone()
    assert weights(job) and not ran


@pytest.mark.slow
def test_adapter_classifies_a_text_without_this_software_by_the_recipe_of_its_card(tmp_path: Path) -> None:
    job = Job.make(tmp_path / "run", *HEAD, "spec.cluster.workers=1", kind=CLASSES)
    job.train_alone()
    for name, content in job.store().read("final").items():
        (tmp_path / name).write_bytes(content)
    (recipe,) = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    recipe = recipe.replace('"DIR"', repr(str(tmp_path))).replace("a text to classify", "w1 w2 w3 w4 w5")
    show = "import json, sys\nassert 'tensorguard' not in sys.modules\nprint(json.dumps(logits.tolist()))"
    done = subprocess.run([sys.executable, "-c", recipe + show], capture_output=True, text=True, check=True)
    *_, named, shown = done.stdout.splitlines()
    found, model = weights(job), job.job.spec.model.name
    encoder = transformers.AutoModel.from_pretrained(model).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(model)("w1 w2 w3 w4 w5", return_tensors="pt")
    with torch.no_grad():
        mean = encoder(**inputs).last_hidden_state[0].mean(dim=0)
    (weight,), (bias,) = ([found[name] for name in found if name.endswith(end)] for end in ("weight", "bias"))
    logits = weight @ mean + bias
    assert json.loads(shown) == pytest.approx(logits.tolist(), abs=1e-5)
    assert named == f"LABEL_{int(logits.argmax())}"


def test_defaults_are_a_hundred_steps_on_all_units() -> None:
    text = CLASSES.manifest.replace("steps: 12, expectedBatchSize: 20, ", "").replace('noiseMultiplier: "0.8", ', "")
    job = load_manifest(text, [LAYERS])
    assert load_manifest(dump_manifest(job, defaults=False)).spec.head_only
    plan = resolve_job(job)[1]
    assert (plan.steps, plan.mechanism.expected_batch_size, plan.mechanism.sample_rate) == (100, 200, "1")
    plan = resolve_job(load_manifest(text, [LAYERS, "spec.dataset.unit.atLeast=1000000"]))[1]
    assert (plan.steps, plan.mechanism.expected_batch_size) == (100, 100_000)  # the integer grid has room for no more
    plan = resolve_job(load_manifest(text, [LAYERS, "spec.training.epochs=20"]))[1]
    assert (plan.steps, plan.mechanism.sample_rate) == (20, "1")


def test_states_of_a_text_are_one_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = set()
    rows = StateRows.build

    def watched(form: StateRows, *args: Any) -> dict[str, torch.Tensor]:
        inputs = rows(form, *args)
        shapes.add((tuple(inputs), tuple(inputs[STATES].shape)))
        return inputs

    monkeypatch.setattr(StateRows, "build", watched)
    job = Job.make(tmp_path, *HEAD, "spec.training.steps=2", "spec.cluster.workers=1", kind=CLASSES)
    job.train_alone()
    assert weights(job) and shapes == {((STATES,), (8, 32))}
