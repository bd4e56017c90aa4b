"""The privacy statement: its figures can be recomputed, and its page shows every fact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting import rdp

from tensafe_api.accounting import composition
from tensafe_api.resources.mechanism import EarlierSteps, Mechanism, PrivacyEvent, charged_events
from tensafe_api.statement.contents import (
    NOT_KNOWN,
    AggregationStatement,
    StatementInputs,
    build_statement,
    canonical_json,
    digest,
    recompute_epsilon,
    render_markdown,
)

MECHANISM = Mechanism(
    sample_rate="0.04",
    noise_multiplier="1.5",
    clip="0.7",
    unit="User",
    workers=4,
    grid_bits=21,
    expected_batch_size=200,
)
INPUTS = StatementInputs(
    job_name="claims-triage",
    job_uid="3f2a91c0",
    attempt=2,
    place="PodsWithTLS",
    mechanism=MECHANISM,
    unit_at_least=5000,
    planned_steps=2250,
    target_epsilon="8",
    delta="0.00001",
    accountant="RDP",
    steps_charged=1234,
    steps_recharged=56,
    step=1178,
    events=charged_events(MECHANISM, 1234),
    dimension=98_765,
    noise_distance=2.0**-102,
    aggregation=AggregationStatement("pairwise masks", ("The network is trusted.",), ("Malicious workers.",)),
    adapter_digest="sha256:" + "ab" * 32,
    ledger_head="cd" * 32,
    ledger_length=77,
    dataset_digest="ef" * 32,
    image="registry.example/tensafe-trainer:0.1@sha256:5678",
    ray_version="2.60.0",
    lineage="claims-2026",
    model={"name": "Qwen/Qwen3-0.6B", "weights": "sha256:1234"},
    evaluation="Public: s3://public/eval/",
    private_metrics="Internal",
    remarks=("On this machine a kernel rounded.",),
)
EARLIER = {
    "uri": "s3://b/first",
    "adapter": "sha256:9",
    "statement": "sha256:8",
    "epsilon": "4.5",
    "delta": "0.3",
    "noiseDistance": "1.5e-21",
}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
@pytest.mark.parametrize("steps", [0, 1, 300])
def test_spent_epsilon_can_be_recomputed_from_the_events(steps: int, accountant: Any) -> None:
    events = charged_events(MECHANISM, steps)
    document = build_statement(replace(INPUTS, steps_charged=steps, events=events, accountant=accountant))
    document = json.loads(canonical_json(document))
    assert recompute_epsilon(document) == document["spent"]["epsilon"]


def test_three_lines_of_dp_accounting_give_the_same_epsilon() -> None:
    document = build_statement(INPUTS)
    accountant = rdp.RdpAccountant()
    for event in document["events"]:
        gaussian = dp_accounting.GaussianDpEvent(float(event["noiseMultiplier"]))
        accountant.compose(dp_accounting.PoissonSampledDpEvent(float(event["sampleRate"]), gaussian), event["steps"])
    epsilon = accountant.get_epsilon(float(document["claim"]["delta"]))
    assert epsilon <= float(document["spent"]["epsilon"]) < epsilon + 2e-3


def test_changed_events_give_another_epsilon() -> None:
    document = build_statement(INPUTS)
    document["events"] = [
        PrivacyEvent(sample_rate="0.04", noise_multiplier="1.5", steps=1000).model_dump(by_alias=True)
    ]
    assert recompute_epsilon(document) != document["spent"]["epsilon"]


def test_epsilon_of_noise_of_too_few_grid_steps_is_not_recomputed() -> None:
    """The accounting of continuous noise holds from 2,830 grid steps on."""
    coarse = MECHANISM.model_copy(update={"noise_multiplier": "0.18", "grid_bits": 14})
    document = build_statement(replace(INPUTS, mechanism=coarse, events=charged_events(coarse, 1234)))
    assert recompute_epsilon(document) == document["spent"]["epsilon"]
    document["events"][0]["noiseMultiplier"] = "0.17"
    with pytest.raises(ValueError, match=r"^events: noise of 0\.17 clip norms is below 2,830 steps of the grid"):
        recompute_epsilon(document)


def test_earlier_event_had_a_grid_of_its_own() -> None:
    """Its noise had enough steps there. On the coarser grid of the job that started from its adapter it would not."""
    earlier = EarlierSteps(sample_rate="0.04", noise_multiplier="0.15", steps=3)
    coarse = MECHANISM.model_copy(update={"grid_bits": 14, "earlier_steps": (earlier,)})
    document = build_statement(replace(INPUTS, mechanism=coarse, events=charged_events(coarse, 1234)))
    assert recompute_epsilon(document) == document["spent"]["epsilon"]


def test_claim_covers_at_least_the_planned_steps() -> None:
    """The step at which a run stopped may have depended on its results."""
    stopped = build_statement(INPUTS)
    assert (stopped["claim"]["steps"], stopped["spent"]["stepsCharged"]) == (2250, 1234)
    assert stopped["claim"]["epsilon"] == "7.33"  # 7.32936, rounded up
    assert float(stopped["spent"]["epsilon"]) < float(stopped["claim"]["epsilon"])
    recharged = build_statement(replace(INPUTS, steps_charged=2300, events=charged_events(MECHANISM, 2300)))
    assert recharged["claim"]["steps"] == 2300
    assert recharged["claim"]["epsilon"] == recharged["spent"]["epsilon"]
    assert float(recharged["claim"]["epsilon"]) > 7.33


def test_every_epsilon_of_the_statement_is_shown_with_its_steps() -> None:
    document = build_statement(INPUTS)
    page = render_markdown(document)
    for name, steps in (("claim", 2250), ("spent", 1234)):
        assert steps in document[name].values(), name
        (row,) = [line for line in page.splitlines() if line.endswith(f" {document[name]['epsilon']} |")]
        assert f"of {steps} steps" in row
    headline = next(line for line in page.splitlines() if line.startswith("**("))
    assert f"({document['claim']['epsilon']}, 0.00001)" in headline and "for 2250 steps" in headline


def test_statement_on_workers_is_true_for_the_place_where_they_run() -> None:
    """Nothing separates a worker from the data of the others, neither on one machine nor in pods."""
    pods = " ".join(build_statement(INPUTS)["assumed"])
    assert "Every worker can read the whole data set" in pods
    assert "hides no record from a worker" in pods
    assert "one machine" not in pods
    assert "Ray's messages are encrypted (TLS)" in pods and "may read everything that passes" in pods
    plain = " ".join(build_statement(replace(INPUTS, place="Pods"))["assumed"])
    assert "hides no record from a worker" in plain
    assert "Ray's messages between the pods of this attempt are not encrypted" in plain and "TLS" not in plain
    local = " ".join(build_statement(replace(INPUTS, place="OneMachine"))["assumed"])
    assert "The owner of the machine can read the data set" in local
    assert "Masks do not protect against the owner" in local
    assert "pod" not in local
    nodes = " ".join(build_statement(replace(INPUTS, place="Nodes"))["assumed"])
    assert "hides no record from a worker" in nodes and "the storage that the nodes share" in nodes
    assert "pod" not in nodes and "one machine" not in nodes
    for text in (pods, local, nodes):
        assert "sees its own shard" not in text


def test_statement_defines_its_adjacency() -> None:
    document = build_statement(INPUTS)
    assert (document["claim"]["adjacency"], document["mechanism"]["adjacency"]) == ("AddOrRemoveOne",) * 2
    assert "the number of units is private" in document["claim"]["adjacencyDefinition"]
    counted = build_statement(replace(INPUTS, mechanism=MECHANISM.model_copy(update={"adjacency": "ZeroOut"})))
    assert (counted["claim"]["adjacency"], counted["mechanism"]["adjacency"]) == ("ZeroOut",) * 2
    assert "the number of units is the same and public" in counted["claim"]["adjacencyDefinition"]
    assert "The number of units: `unit.atLeast` is that number, and it is public." in counted["notCovered"]
    assert counted["claim"]["epsilon"] == document["claim"]["epsilon"]
    assert "under ZeroOut adjacency (neighbouring data sets differ by one unit, in whose place" in render_markdown(
        counted
    )


def test_statement_contains_the_frozen_mechanism() -> None:
    document = build_statement(INPUTS)
    frozen = MECHANISM.model_dump(by_alias=True)
    assert {name: document["mechanism"][name] for name in frozen} == frozen
    assert document["events"] == [event.model_dump(by_alias=True) for event in INPUTS.events]


def test_every_input_changes_the_statement() -> None:
    """A change of any input changes the document."""
    changed = {
        "place": "OneMachine",
        "mechanism": MECHANISM.model_copy(update={"clip": "0.8"}),
        "events": (),
        "accountant": "PLD",
        "delta": "0.00002",
        "model": {"name": "other"},
        "remarks": (),
        "aggregation": AggregationStatement("", (), ()),
        "unit_column": "patient",
        "started_from": EARLIER,
        "audit_log": ("aa" * 32, 7),
    }
    for number, name in enumerate(("protocol", "assumed", "not_covered")):
        part = replace(INPUTS.aggregation, **{name: "masks" if number == 0 else ()})
        assert build_statement(replace(INPUTS, aggregation=part)) != build_statement(INPUTS), name
    whole = build_statement(INPUTS)
    for field in fields(StatementInputs):
        value = getattr(INPUTS, field.name)
        other = changed.get(field.name, f"{value}0" if isinstance(value, str) else None)
        if isinstance(value, bool):
            other = not value
        elif other is None:
            other = value + 1
        assert build_statement(replace(INPUTS, **{field.name: other})) != whole, field.name


def test_statement_names_the_audit_log_where_one_is_kept() -> None:
    document = build_statement(replace(INPUTS, audit_log=("aa" * 32, 7)))
    assert (document["hashes"]["auditLogHead"], document["hashes"]["auditLogLength"]) == ("aa" * 32, 7)
    assert f"| audit log | entry 7, `{'aa' * 32}` |" in render_markdown(document)
    assert "audit log" not in render_markdown(build_statement(INPUTS))


def test_unknown_facts_are_stated_as_not_known() -> None:
    unknown = dict.fromkeys(("dataset_digest", "lineage", "evaluation", "image", "ray_version"))
    bare = build_statement(replace(INPUTS, model={}, **unknown))
    assert bare["hashes"]["dataset"] == bare["lineage"] == bare["model"] == NOT_KNOWN
    assert bare["hashes"]["image"] == bare["budget"] == NOT_KNOWN
    assert bare["evaluation"] == "none"
    assert bare["hashes"]["ray"] == NOT_KNOWN
    assert render_markdown(bare).count(NOT_KNOWN) == 6


@pytest.mark.parametrize(
    "inputs",
    [
        INPUTS,
        replace(INPUTS, model={}, lineage=None, remarks=(), mechanism=MECHANISM.model_copy(update={"unit": "Example"})),
        replace(INPUTS, started_from=EARLIER, unit_column="patient"),
    ],
)
def test_page_shows_every_fact(inputs: StatementInputs) -> None:
    document = build_statement(inputs)
    text = render_markdown(document)
    del document["schema"]
    del document["mechanism"]["gridBits"]
    missing = [leaf for leaf in leaves(document) if str(leaf) not in text]
    assert not missing
    assert "2^21" in text
    for name, figure in (
        ("planned steps", "2250"),
        ("δ", "0.00001"),
        ("noise multiplier σ", "1.5"),
        ("unit", inputs.mechanism.unit),
    ):
        assert f"| {name} | {figure} |" in text


def test_statement_and_page_are_those_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers and their programs rely on each name and each sentence. A change of one shows in the examples."""
    versions = {"dp-accounting": "0.6.0", "tensafe": "0.1.0"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    document = build_statement(INPUTS)
    assert document == json.loads(Path(__file__).with_name("statement.json").read_text("utf-8"))
    assert render_markdown(document) == Path(__file__).with_name("statement.md").read_text("utf-8")


def test_page_of_unknown_facts_says_so() -> None:
    page = render_markdown(build_statement(replace(INPUTS, lineage=None, model={}, evaluation=None, remarks=())))
    assert "| model | not known |" in page and "| evaluation data set | none |" in page
    assert "Remarks" not in page


def test_publicness_of_the_evaluation_set_is_stated_as_the_word_of_the_author() -> None:
    def stated(evaluation: str | None) -> bool:
        document = build_statement(replace(INPUTS, evaluation=evaluation))
        return any("this is the word of the job's author" in sentence for sentence in document["assumed"])

    assert stated("Public: s3://open/eval.jsonl")
    assert not stated("Private: s3://clinic/eval.jsonl") and not stated(None)


def test_readers_of_private_metrics_are_not_covered_by_the_claim() -> None:
    def stated(metrics: str) -> bool:
        document = build_statement(replace(INPUTS, private_metrics=metrics))
        return any("Readers of the private metrics" in sentence for sentence in document["notCovered"])

    assert stated("Internal") and not stated("Hidden")


def test_records_without_a_user_are_units_only_where_the_statement_says_so() -> None:
    assert "without a user id" not in build_statement(INPUTS)["claim"]["unitDefinition"]
    own = build_statement(replace(INPUTS, own_units=True))["claim"]["unitDefinition"]
    assert own.endswith("each record without a user id is a separate unit")


def test_copies_of_a_record_are_units_of_their_own() -> None:
    """Nothing else would tell a reader that a record which stands three times is protected with three times ε."""
    example = replace(INPUTS, mechanism=MECHANISM.model_copy(update={"unit": "Example"}))
    assert (
        "a record that stands in the data set several times is as many units"
        in (build_statement(example)["claim"]["unitDefinition"])
    )


def test_refusal_of_records_is_stated_as_an_assumption() -> None:
    """A job that is not refused reveals that each record can be used."""

    def assumed(part: str, **changes: bool) -> bool:
        return any(part in text for text in build_statement(replace(INPUTS, **changes))["assumed"])

    assert assumed("record of the data set can be used") and assumed("has the id of its user")
    assert not assumed("record of the data set can be used", refuses_records=False)
    assert assumed("has the id of its user", refuses_records=False)
    assert not assumed("has the id of its user", own_units=True)


def test_canonical_json_is_stable() -> None:
    document = build_statement(INPUTS)
    content = canonical_json(document)
    assert json.loads(content) == document
    assert canonical_json(json.loads(content)) == content
    assert canonical_json(dict(reversed(document.items()))) == content
    assert canonical_json({"b": 1, "a": {"ü": [1.5, None, True]}}) == '{"a":{"ü":[1.5,null,true]},"b":1}'.encode()
    with pytest.raises(ValueError):
        canonical_json({"epsilon": float("nan")})


def test_digest_names_its_hash_function() -> None:
    assert digest(b"abc") == "sha256:" + hashlib.sha256(b"abc").hexdigest()
    assert digest(b"abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_every_epsilon_is_that_of_the_job_s_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a formula in place of ε: the number of steps for RDP, a tenth of it for PLD."""
    factors = {"RDP": 1.0, "PLD": 0.1}

    def formula(*, steps: int, noise_multiplier: float, accountant: str = "RDP", **_: float) -> float:
        return steps * factors[accountant] / noise_multiplier

    monkeypatch.setattr(composition, "epsilon", formula)
    mechanism = MECHANISM.model_copy(update={"noise_multiplier": "1"})
    for accountant, factor, claimed in (("RDP", 1.0, 90), ("PLD", 0.1, 900)):
        changes = {"mechanism": mechanism, "planned_steps": 1000, "steps_charged": 50, "target_epsilon": "90"}
        document = build_statement(replace(INPUTS, **changes, accountant=accountant))
        assert document["claim"]["steps"] == claimed
        assert float(document["claim"]["epsilon"]) == 90.0
        assert float(document["spent"]["epsilon"]) == 50 * factor
