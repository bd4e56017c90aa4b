"""Continuous integration runs the verbs of the Makefile, so that none of them stops working unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
SCRIPTS = "".join((ROOT / ".ci" / name).read_text() for name in ("run", "verbs"))

PART_OF = {"lint": "test", "setup": "test", "test-fast": "test", "test-cluster": "test-all"}
"""Verbs that continuous integration runs as a part of another verb."""
RUN_BY_PEOPLE = {"mutants", "mutants-generated"}
"""Verbs that take too long for continuous integration."""


def rule(verb: str) -> str:
    """The line of a verb and its recipe."""
    found = re.search(rf"^{verb}:.*\n(?:\t.*\n|else.*\n|endif.*\n|ifn?eq.*\n)*", MAKEFILE, re.MULTILINE)
    assert found, verb
    return found[0]


def verbs() -> list[str]:
    return re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.MULTILINE)


def run_by_ci() -> set[str]:
    """The verbs after `part make` and `part_within MINUTES make` in the scripts, without settings such as SHORT=1."""
    lines = re.findall(r"^ *part(?:_within \d+)? make ((?:[a-z0-9-]+(?: |$))+)", SCRIPTS, re.MULTILINE)
    return {verb for line in lines for verb in line.split()}


def test_makefile_lists_every_verb_as_phony() -> None:
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    assert sorted(phony[1].replace("\\\n", "").split()) == sorted(verbs())


@pytest.mark.parametrize("verb", verbs())
def test_continuous_integration_runs_verb_or_leaves_it_to_people(verb: str) -> None:
    assert (verb in run_by_ci() | PART_OF.keys()) != (verb in RUN_BY_PEOPLE)


@pytest.mark.parametrize(("verb", "whole"), PART_OF.items())
def test_verb_is_a_part_of_another_one(verb: str, whole: str) -> None:
    assert whole in run_by_ci()
    prerequisites = rule(whole).splitlines()[0].partition("##")[0].partition(":")[2].split()
    commands = rule(verb).splitlines()[1:]
    assert verb in prerequisites or (commands and set(commands) <= set(rule(whole).splitlines()))


def test_scripts_run_only_verbs_that_exist() -> None:
    assert run_by_ci() <= set(verbs())


def test_workflow_runs_verbs_that_exist_and_the_short_forms() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands if command.startswith("make ")} <= set(verbs())
    assert ".ci/verbs" in commands
