"""Releases that differ: a manifest and a status of one release, read by the one before it and the one after it.

The rules are in docs/versioning.md. No test here knows an earlier release; each makes one from
this one, by taking a field away.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensafe_api
from tensafe_api.manifest.text import dump_manifest, load_manifest, parse_job
from tensafe_api.resolve import ledger_spec
from tensafe_api.resources.status import Status
from tensafe_api.schema import crd
from tensafe_operator.children import configuration
from tensafe_operator.decision.admission import Admitted, admit, with_ledger_values
from tensafe_operator.decision.parsing import parse_ledger_spec
from tests.support.manifests import MINIMAL, changed

DEFAULTS = Path(__file__).with_name("defaults.json")
FIXED_BY_THE_LEDGER = {
    "spec.training.steps",
    "spec.training.expectedBatchSize",
    "spec.privacy.targetDelta",
    "spec.privacy.noiseMultiplier",
    "spec.privacy.accountant",
    "spec.privacy.reserveSteps",
}
IDENTITY = {"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid"}
SMALL = {
    "spec.training": {"steps": 20, "expectedBatchSize": 250},
    "metadata.namespace": "clinic",
    "metadata.uid": "1-2",
}


def defaults_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The paths of all fields with a default, and the defaults."""
    if "default" in schema:
        yield path, schema["default"]
    for name, inner in schema.get("properties", {}).items():
        yield from defaults_of(inner, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from defaults_of(schema["items"], f"{path}[]")


def paths_of(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all leaves of a manifest."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from paths_of(inner, f"{path}.{name}" if path else name)
    else:
        yield path


def as_the_api_server_returns_it(manifest: dict[str, Any]) -> dict[str, Any]:
    """The object with the defaults of the CRD, all of which the API server fills in."""
    whole: dict[str, Any] = json.loads(dump_manifest(parse_job(manifest), "json"))
    return whole


def job_file(manifest: dict[str, Any]) -> dict[str, Any]:
    """What the workers of a job get to read."""
    admitted = admit(as_the_api_server_returns_it(manifest), None, lambda figure: figure.compute())
    assert isinstance(admitted, Admitted), admitted
    others = {"keySecretName": "key", "keyDigest": "0", "serviceAccountName": "trainer"}
    opened = ledger_spec(admitted.job, admitted.claim, "1-2")
    spec = parse_ledger_spec({"spec": {**opened.model_dump(by_alias=True, mode="json"), **others}})
    assert spec is not None
    made = configuration.config_map(with_ledger_values(admitted, spec).job, 1, "ledger", "uid", "digest")
    written: dict[str, Any] = json.loads(made["data"]["job.json"])
    return written


@pytest.fixture(scope="module")
def older_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `tensafe_api` without `spec.startDeadlineSeconds` and `status.keyDeleted`."""
    root = tmp_path_factory.mktemp("older")
    copy = root / "tensafe_api"
    shutil.copytree(Path(tensafe_api.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file, field in (("job.py", "start_deadline_seconds"), ("status.py", "key_deleted")):
        path = copy / "resources" / file
        lines = path.read_text().splitlines(keepends=True)
        (found,) = (
            node
            for node in ast.walk(ast.parse("".join(lines)))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == field
        )
        del lines[found.lineno - 1 : found.end_lineno]
        path.write_text("".join(lines))
    return root


def run_older(release: Path, code: str, value: Any) -> subprocess.CompletedProcess[str]:
    """Run code of an older release, which reads `value` as JSON from its standard input."""
    environment = {**os.environ, "PYTHONPATH": str(release)}
    text = f"import json, sys\nvalue = json.load(sys.stdin)\n{code}"
    command = [sys.executable, "-c", text]
    return subprocess.run(
        command, input=json.dumps(value), env=environment, capture_output=True, text=True, check=False
    )


def test_no_default_changes_and_no_new_field_has_one() -> None:
    """The API server fills a default into every object, also for an operator that does not know the field. And workers
    of another release fill in their own default where a manifest leaves a field out.
    """
    found = {kind.plural: dict(defaults_of(crd.open_api_schema(kind))) for kind in crd.KINDS}
    assert found == json.loads(DEFAULTS.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"spec.retry": {"maxRestarts": 2}}, {"spec.lora": {"rank": 4}, "spec.privacy.maxGradNorm": "0.5"}],
    ids=["few fields", "retry", "lora and privacy"],
)
def test_workers_read_what_was_asked_for_and_what_the_ledger_fixes(changes: dict[str, Any]) -> None:
    manifest = changed(MINIMAL, {**SMALL, **changes})
    asked = set(paths_of(manifest)) | FIXED_BY_THE_LEDGER | IDENTITY
    assert set(paths_of(job_file(manifest))) <= asked
    assert set(paths_of(manifest)) - {"metadata.name"} <= set(paths_of(job_file(manifest))) | {
        "spec.dataset.unit.maxExamplesPerUnit"
    }


@pytest.mark.slow
def test_workers_of_an_older_release_read_a_job_that_does_not_use_the_new_field(older_release: Path) -> None:
    code = "from tensafe_api.manifest.validation import parse_job\nprint(parse_job(value).spec.training.steps)"
    done = run_older(older_release, code, job_file(changed(MINIMAL, SMALL)))
    assert (done.returncode, done.stdout) == (0, "20\n"), done.stderr


@pytest.mark.slow
def test_workers_of_an_older_release_name_the_new_field_of_a_job_that_uses_it(older_release: Path) -> None:
    """They could not do what the author asks for."""
    written = job_file(changed(MINIMAL, {**SMALL, "spec.startDeadlineSeconds": 600}))
    done = run_older(older_release, "from tensafe_api.manifest.validation import parse_job\nparse_job(value)", written)
    assert done.returncode == 1
    assert "spec.startDeadlineSeconds: unknown field" in done.stderr


def test_operator_of_an_older_release_reads_a_newer_status(older_release: Path) -> None:
    """After a rollback the status has fields that it does not know. They are computed again from the ledger."""
    newer = Status(phase="Succeeded", key_deleted=True).model_dump(by_alias=True, mode="json", exclude_none=True)
    code = "from tensafe_api.resources.status import Status\nprint(Status.model_validate(value, by_name=False).phase)"
    done = run_older(older_release, code, newer)
    assert (done.returncode, done.stdout) == (0, "Succeeded\n"), done.stderr


def test_job_file_is_read_as_the_job_that_was_admitted() -> None:
    manifest = changed(MINIMAL, {**SMALL, "spec.cluster.image": "own:1", "spec.cluster.rayVersion": "2.60.0"})
    read = load_manifest(json.dumps(job_file(manifest)))
    assert read.spec.cluster == parse_job(manifest).spec.cluster
    assert read.spec.model == parse_job(manifest).spec.model
