"""The page docs/extending/status-condition.md is followed step by step, in a copy of the packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending" / "status-condition.md"
REASONS = "crds/tensafe_api/reasons.py"
CONDITIONS = "operator/tensafe_operator/decision/conditions.py"
PLACES = {
    REASONS: (r"\n\n\nclass EventReason\(", r"\n\n    @classmethod\n    def named"),
    CONDITIONS: (r"\n\n\nRULES: ", r"\n\}\n\n\ndef set_conditions\("),
}
"""The pattern in front of which each block of the page belongs, in the order of the page."""


def blocks(language: str = "python") -> list[str]:
    section = PAGE.read_text(encoding="utf-8")
    return [block.rstrip("\n") for block in re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages with the condition of the page."""
    for name in ("crds", "operator", "charts", "tests/support", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    given = iter(blocks())
    for name, patterns in PLACES.items():
        path = tmp_path / name
        text = path.read_text(encoding="utf-8")
        for pattern in patterns:
            [place] = re.finditer(pattern, text)
            block = next(given)
            separator = "\n\n\n" if block.startswith("def ") else "\n"
            text = text[: place.start()] + separator + block + text[place.start() :]
        path.write_text(text, encoding="utf-8")
    assert not list(given), "the page has more blocks than this test inserts"
    return tmp_path


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(tree / name) for name in ("crds", "operator", "."))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300, check=False)


SCENARIO = """
from tests.support.fake_cluster import condition, running_job
from tensafe_api.resources.status import Status

cluster, operator = running_job()
print(condition(cluster, "Recharged")["status"], condition(cluster, "Recharged")["reason"])
cluster.ledger["status"]["stepsRecharged"] = 3
operator.settle()
found = condition(cluster, "Recharged")
print(found["status"], found["reason"])
print(found["message"])
print(condition(cluster, "Running")["reason"])
"""


def test_condition_of_the_page_is_reported(tree: Path) -> None:
    done = run(tree, "-c", SCENARIO)
    assert done.returncode == 0, done.stderr
    before, after, message, others = done.stdout.splitlines()
    assert (before, after, others) == ("False Training", "True StepsRecharged", "Training")
    assert message.startswith("3 steps were charged a second time: For the next job, lower checkpoint.everySteps")


TEST = """
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import PrivacyStatus, Status
from tensafe_operator.decision.conditions import JobState, set_conditions

"""


def test_test_of_the_page_passes(tree: Path) -> None:
    [test] = blocks("text")
    done = run(tree, "-c", TEST + test)
    assert done.returncode == 0, done.stderr


def test_generated_files_receive_the_condition(tree: Path) -> None:
    for command in (("-m", "tensafe_api.schema.crd"), ("docs/generate.py",)):
        assert run(tree, *command, "--check").returncode == 1
        done = run(tree, *command)
        assert done.returncode == 0, done.stderr
        assert run(tree, *command, "--check").returncode == 0
    assert "- Recharged\n" in (tree / "crds/tensafe.io_tensafetrainingjobs.yaml").read_text(encoding="utf-8")
    reference = (tree / "docs/reference/conditions-and-reasons.md").read_text(encoding="utf-8")
    assert "| `Recharged` | Steps were charged a second time" in reference
    assert "### `StepsRecharged`\n" in reference
    page = PAGE.read_text(encoding="utf-8")
    for folder in ("crds", "charts", "docs/reference"):
        for path in (tree / folder).rglob("*.*"):
            name = path.relative_to(tree)
            if path.suffix in (".yaml", ".md") and path.read_bytes() != (ROOT / name).read_bytes():
                assert f"- `{name}`\n" in page


def test_tests_of_conditions_and_reasons_pass(tree: Path) -> None:
    for name in ("tests/api/test_reasons.py", "tests/operator/decision/test_conditions.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/api", "tests/operator")
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_without_a_rule_fails_the_tests_of_conditions(tree: Path) -> None:
    path = tree / CONDITIONS
    path.write_text(path.read_text(encoding="utf-8").replace(blocks()[3] + "\n", ""), encoding="utf-8")
    shutil.copytree(ROOT / "tests/operator/decision", tree / "tests/operator/decision")
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/operator/decision/test_conditions.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_every_condition_type_has_a_rule" in done.stdout
