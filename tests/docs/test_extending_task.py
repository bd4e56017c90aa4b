"""The page docs/extending/model-task.md is followed step by step, in a copy of the packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tensafe_api.tasks import TASKS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending" / "model-task.md"
TABLE = "crds/tensafe_api/tasks.py"
MODULE = "trainer_image/tensorguard/models/tasks/pair_classification.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with the task of the page: steps 1 to 3."""
    tree = tmp_path_factory.mktemp("tree")
    section = PAGE.read_text(encoding="utf-8")
    entry, module = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for name in ("crds", "trainer_image", "tests/support", "charts", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = (tree / TABLE).read_text(encoding="utf-8")
    [table] = re.finditer(r"^TASKS = \{[^}]*?\sin \([^)]*?(,?\s*\)\s*\})$", text, re.MULTILINE)
    before, tasks, after = text[: table.start()], text[table.start() : table.start(1)], text[table.end() :]
    (tree / TABLE).write_text(f"{before}{entry}\n{tasks}, PAIR_CLASSIFICATION)}}{after}", encoding="utf-8")
    (tree / MODULE).write_text(module, encoding="utf-8")
    for command in (("-m", "tensafe_api.schema.crd"), ("docs/generate.py",)):
        done = run(tree, *command)
        assert done.returncode == 0, done.stderr
    return tree


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(tree / name) for name in ("crds", "trainer_image", "."))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_schema_and_reference_page_have_the_task(tree: Path) -> None:
    schema = json.dumps(yaml.safe_load((tree / "crds/tensafe.io_tensafetrainingjobs.yaml").read_text(encoding="utf-8")))
    assert json.dumps([*TASKS, "PairClassification"]) in schema
    assert "has(self.premise) == has(self.hypothesis) && has(self.hypothesis) == has(self.relation)" in schema
    reference = (tree / "docs/reference/tensafetrainingjob.md").read_text(encoding="utf-8")
    assert "premise, hypothesis and relation for PairClassification" in reference
    assert "| `relation` |" in reference


SCENARIO = '''
import json, sys
from pathlib import Path

from tests.support.trainer.rank_harness import MANIFEST, Job, JobKind, make_model, records


def pairs(count):
    """The first texts of `records`, each with a second one; the relation is the label of the first."""
    return [{"first": row["text"], "second": "and so on", "relation": row["label"]} for row in records(count)]


if __name__ == "__main__":
    manifest = MANIFEST.replace("SequenceClassification", "PairClassification").replace(
        "{text: text, label: label}", "{premise: first, hypothesis: second, relation: relation}"
    )
    evaluation = "spec.evaluation={uri: other.jsonl, visibility: Public, everySteps: 1}"
    job = Job.make(
        Path(sys.argv[1]), evaluation, "spec.training.steps=1", kind=JobKind(manifest, make_model, pairs)
    )
    codes = job.run()
    status = job.status()
    print(json.dumps({
        "codes": codes,
        "phase": status.phase,
        "evaluations": [each.metrics() for each in status.evaluations],
        "files": sorted(job.store().read("final")),
        "errors": job.errors(),
    }))
'''


def test_task_of_the_page_trains_a_step_with_two_workers(tree: Path, tmp_path: Path) -> None:
    (tree / "scenario.py").write_text(SCENARIO, encoding="utf-8")
    done = run(tree, "scenario.py", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["codes"], result["phase"]) == ([0, 0], "Succeeded"), result["errors"]
    [metrics] = result["evaluations"]
    assert metrics.keys() == {"accuracy"} and 0 <= float(metrics["accuracy"]) <= 1
    assert "adapter_model.safetensors" in result["files"]


def test_tests_that_the_page_names_pass_and_notice_a_missing_class(tree: Path) -> None:
    for name in ("api", "trainer_image/models/tasks"):
        shutil.copytree(ROOT / "tests" / name, tree / "tests" / name, dirs_exist_ok=True)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/trainer_image/models/tasks/test_registry.py")
    done = run(tree, *command, "tests/api/test_tasks.py")
    assert done.returncode == 0, done.stdout
    (tree / MODULE).rename(tree / "elsewhere.py")
    done = run(tree, *command, "-k", "same_tasks")
    assert done.returncode == 1 and "test_contract_and_trainer_have_the_same_tasks" in done.stdout
