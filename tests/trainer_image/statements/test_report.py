"""The report of a statement: its figures are those of the statement, with units, and were computed again."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tensafe_api.accounting import composition
from tensafe_api.statement.contents import canonical_json, digest
from tensafe_api.statement.document import StatementError
from tensorguard.statements.report import StatementReport, build_report

SCHEMA = Path(__file__).parents[3] / "docs/reference/statement-report.schema.json"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{place}")
    else:
        yield path, value


def test_every_figure_has_a_unit_and_the_digits_of_the_statement(statement: dict[str, Any]) -> None:
    found = dict(leaves(statement))
    for group in build_report(statement).parts.figures:
        for figure in group.figures:
            assert figure.unit and "{" not in figure.unit
            if figure.field:
                assert figure.value == str(found[figure.field])


def test_every_field_of_the_statement_is_shown(statement: dict[str, Any]) -> None:
    report = build_report(statement)
    shown = {figure.field for group in report.parts.figures for figure in group.figures}
    shown |= {fact.field for fact in report.parts.facts}
    elsewhere = ("assumed.", "notCovered.", "remarks.", "schema", "events.", "mechanism.earlierSteps.")
    again = {"mechanism.unit": "claim.unit", "mechanism.adjacency": "claim.adjacency"}
    for path, _ in leaves(statement):
        path = again.get(path, path)
        if not path.startswith(elsewhere):
            assert path in shown or path.split(".")[0] in shown, path


def test_curve_ends_at_the_claimed_epsilon(statement: dict[str, Any]) -> None:
    curve = build_report(statement).parts.curve
    assert (curve[-1].steps, curve[-1].epsilon) == (statement["claim"]["steps"], statement["claim"]["epsilon"])
    assert curve[0].steps == 0
    epsilons = [float(point.epsilon) for point in curve]
    assert epsilons == sorted(epsilons)
    assert (epsilons[0] > 0) == ("startedFrom" in statement), "earlier steps are paid before the first one"


def test_curve_is_that_of_the_accountant(make: Any) -> None:
    report = build_report(make())
    assert len(report.parts.curve) > 40
    for point in report.parts.curve:
        epsilon = composition.job_epsilon(report.document.mechanism, point.steps, "0.00001", "RDP")
        assert epsilon <= float(point.epsilon) < epsilon + 1e-3


def test_report_names_the_file_that_it_is_about(statement: dict[str, Any]) -> None:
    assert build_report(statement).parts.statement_digest == digest(canonical_json(statement))


def test_json_is_the_statement_and_what_the_page_shows(statement: dict[str, Any]) -> None:
    shown = json.loads(json.dumps(build_report(statement, ["The caller has looked."]).as_json()))
    assert shown["statement"] == statement
    assert canonical_json(shown["statement"]) == canonical_json(statement)
    assert shown["checked"][-1] == "The caller has looked."
    schema = json.loads(SCHEMA.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(shown)
    assert StatementReport.model_validate(shown).statement.claim.epsilon == statement["claim"]["epsilon"]
    for field in schema["required"]:
        assert list(Draft202012Validator(schema).iter_errors({k: v for k, v in shown.items() if k != field})), field


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("claim.epsilon", "0.5", r"^claim\.epsilon is 0\.5, and the rest of the statement gives 1\.785$"),
        ("spent.epsilon", "0.5", r"^spent\.epsilon is 0\.5, "),
        ("claim.delta", "0.1", r"^spent\.epsilon"),
        ("claim.steps", 90, r"^claim\.steps is 90, and the rest of the statement gives 150$"),
        ("claim.steps", 80, r"^claim\.steps is 80, and the rest of the statement gives 150$"),
        ("mechanism.noiseMultiplier", "9", r"^events is .*and the rest of the statement gives"),
        ("mechanism.gridBits", 1, r"^its ε cannot be computed: events: noise of 1\.5"),
        ("spent.stepsCharged", 3, r"^events is "),
        ("job.step", 84, r"^job\.step: the adapter has 84 steps, and only 83 are charged a first time$"),
        ("spent.stepsRecharged", 91, r"^spent\.stepsRecharged: it is 91, and only 90 are charged$"),
        ("spent.stepsPlanned", 0, r"^spent\.stepsPlanned: it is 0, and 83 steps are charged a first time$"),
        ("mechanism.noiseDistancePerDraw", "0.9", r"^mechanism\.noiseDistancePerDraw is 0\.9, and δ does not pay for "),
        ("mechanism.noiseDistancePerDraw", "1e-19", r"^mechanism\.noiseDistancePerDraw is 1e-19, and δ does not pay"),
        ("accounting.shareOfDeltaForNoiseSampler", "0", r"^accounting\.shareOfDeltaForNoiseSampler is 0, "),
        ("accounting.shareOfSigmaForDiscreteNoise", "0", r"^accounting\.shareOfSigmaForDiscreteNoise is 0, "),
        ("job.step", 91, r"^job\.step: the adapter has 91 steps, and only 90 are charged$"),
        ("job.name", 7, r"^job\.name: "),
    ],
)
def test_figure_that_does_not_follow_from_the_mechanism_is_refused(
    path: str, value: Any, found: str, make: Any
) -> None:
    changed = copy.deepcopy(make())
    block, name = path.split(".")
    changed[block][name] = value
    with pytest.raises(StatementError, match=found):
        build_report(changed)


def test_job_with_a_target_that_hides_nothing_may_have_started_without_paying_for_its_samplers(make: Any) -> None:
    """Its statement has a remark. The target is compared with the ledger."""
    remark = ("At an ε of 31 the noise sampler's distance from the discrete Gaussian adds e^-20 to δ.",)
    build_report(make(target_epsilon="31", noise_distance=1e-19, remarks=remark))
    for changes in ({"target_epsilon": "30", "remarks": remark}, {"target_epsilon": "31"}):
        with pytest.raises(StatementError, match=r"^mechanism\.noiseDistancePerDraw is 1\.000e-19, and δ does not pay"):
            build_report(make(noise_distance=1e-19, **changes))


def test_noise_distance_of_earlier_trainings_counts(full: dict[str, Any]) -> None:
    build_report(full)
    changed = copy.deepcopy(full)
    changed["startedFrom"]["noiseDistance"] = "1e-5"
    with pytest.raises(StatementError, match="δ does not pay"):
        build_report(changed)


def test_distance_that_is_no_number_pays_nothing(make: Any) -> None:
    changed = copy.deepcopy(make())
    changed["mechanism"] |= {"dimension": 0, "noiseDistancePerDraw": "1e999"}
    with pytest.raises(StatementError, match=r"^mechanism\.noiseDistancePerDraw is 1e999"):
        build_report(changed)


def test_commands_quote_what_comes_from_the_statement(make: Any) -> None:
    report = build_report(make(job_name="a; rm -rf ~ #"))
    assert report.parts.verify[-1].command == "kubectl tensafe statement 'a; rm -rf ~ #' --read"


def test_command_that_computes_the_claim_gives_the_claim(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorguard.cli.main import main

    statement = make()
    (command,) = (each.command for each in build_report(statement).parts.verify if "account" in each.command)
    assert main([*command.split()[1:], "-o", "json"]) == 0
    epsilon = json.loads(capsys.readouterr().out)["epsilon"]
    assert epsilon == pytest.approx(float(statement["claim"]["epsilon"]), abs=2e-3)


def test_verify_is_named_once(make: Any) -> None:
    """So that one line changes when its options do."""
    folder = Path(__file__).parents[3] / "trainer_image/tensorguard/statements"
    sources = [path.read_text("utf-8") for path in (*folder.glob("*.py"), *folder.glob("templates/*"))]
    assert sum(len(re.findall("tensafe verify", source)) for source in sources) == 1
