"""What `statement --read` shows of a stored statement: a pod of the job wrote it, which may be an attacker's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.resources.mechanism import MAX_EARLIER_TRAININGS
from tensafe_api.statement.contents import canonical_json
from tensafe_kubectl.errors import FAILED, CommandError
from tensafe_kubectl.statement import check_statement
from tensafe_kubectl.terminal import LONGEST

WRITTEN = canonical_json(json.loads((Path(__file__).parents[1] / "api" / "statement.json").read_bytes()))
URI = "s3://clinic/models/final/statement.json"
Document = dict[str, Any]


def changed(change: Callable[[Document], object]) -> bytes:
    document = json.loads(WRITTEN)
    change(document)
    try:
        return canonical_json(document)
    except UnicodeEncodeError:
        return json.dumps(document).encode()


def with_event(**fields: object) -> bytes:
    return changed(lambda document: document["events"][-1].update(fields))


def with_claim(**fields: object) -> bytes:
    return changed(lambda document: document["claim"].update(fields))


def with_mechanism(**fields: object) -> bytes:
    """With another mechanism, and the events of it."""

    def change(document: Document) -> None:
        document["mechanism"].update(fields)
        document["events"][-1].update({name: fields[name] for name in fields if name in document["events"][-1]})

    return changed(change)


def with_events(count: int) -> bytes:
    """With events of different kinds, each of which takes time."""

    def change(document: Document) -> None:
        event = document["events"][-1]
        document["events"] = [{**event, "sampleRate": f"0.01{number:05}"} for number in range(count)]

    return changed(change)


def refusal(content: bytes) -> str:
    with pytest.raises(CommandError) as refused:
        check_statement(content, URI)
    assert refused.value.exit_code == FAILED
    message = str(refused.value)
    assert message.startswith(URI) and "\n" not in message and len(message) < LONGEST + 300
    return message


def test_statement_as_it_is_written_is_shown() -> None:
    document, page = check_statement(WRITTEN, URI)
    assert document == json.loads(WRITTEN) and page.startswith("# Privacy statement of")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[]", "it is not a JSON object"),
        (b"{}", "it has the schema None"),
        (b"\xff", "it is not text in UTF-8"),
        (b"{", "it is not JSON"),
        (b"[" * 200_000 + b"]" * 200_000, "its JSON is nested too deeply"),
        (b'{"schema": ' + b"9" * 5_000 + b"}", "Exceeds the limit"),
        (changed(lambda document: document.pop("claim")), "claim: Field required"),
        (changed(lambda document: document.update(startedFrom={})), "startedFrom.uri: Field required"),
        (changed(lambda document: document.update(events=[])), "events: "),
        (changed(lambda document: document.update(startedFrom=None)), "startedFrom: it is null"),
        (changed(lambda document: document.update(startedFrom={"uri": "s3://a/b"})), "startedFrom.adapter: Field"),
        (changed(lambda document: document["hashes"].update(auditLogHead="sha256:0")), "hashes: auditLogHead and"),
        (changed(lambda document: document.update(lineage="\ud800")), "surrogates not allowed"),
        (json.dumps(json.loads(WRITTEN), indent=1).encode(), "it is not canonical JSON"),
        (b'{"lineage":"another",' + WRITTEN[1:], "it is not canonical JSON"),
        (with_mechanism(noiseMultiplier="0.001"), "noise of 0.001 clip norms is below 2,830 steps of the grid"),
        (with_mechanism(noiseMultiplier="9" * 100_000 + "x"), "mechanism.noiseMultiplier: "),
        (with_event(noiseMultiplier="none"), "events is "),
        (with_event(sampleRate="2"), "events is "),
        (with_event(steps="5"), "events is "),
        (with_event(steps=0), "events is "),
        (with_event(noiseMultiplier="300"), "events is "),
        (changed(lambda document: document["claim"].update(epsilon="0.01")), "claim.epsilon is 0.01, and the rest"),
        (changed(lambda document: document["claim"].update(delta="0.9999")), "spent.epsilon is "),
        (changed(lambda document: document["claim"].update(steps=1)), "claim.steps is 1, and the rest"),
        (changed(lambda document: document["spent"].update(stepsPlanned=10**400)), "too large"),
        (with_claim(unitDefinition="all records of one hospital"), "claim.unitDefinition is all records of one"),
        (with_claim(adjacencyDefinition="they differ by one hospital"), "claim.adjacencyDefinition is they differ"),
        (with_claim(covers="all jobs of the clinic"), "claim.covers is all jobs of the clinic"),
        (with_claim(released="nothing"), "claim.released is nothing"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:20],
)
def test_what_is_no_statement_is_refused_in_one_sentence(content: bytes, why: str) -> None:
    message = refusal(content)
    assert why in message


def test_extra_field_of_many_levels_is_refused() -> None:
    """It is deep enough for the page, whatever the JSON parser takes."""
    nested = b"[" * 5_000 + b"]" * 5_000
    assert "nested too deeply" in refusal(WRITTEN.rstrip()[:-1] + b',"later":' + nested + b"}")


def test_figure_that_does_not_follow_from_the_events_is_refused() -> None:
    message = refusal(changed(lambda document: document["spent"].update(epsilon="0.1")))
    assert "spent.epsilon is 0.1, and the rest of the statement gives " in message


def test_more_events_than_a_job_can_have_are_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tensorguard.verification.privacy_claim.check_figures", lambda *_: pytest.fail("it is computed")
    )
    for count in (MAX_EARLIER_TRAININGS + 2, 30_000):
        assert f"events: List should have at most {MAX_EARLIER_TRAININGS + 1} items" in refusal(with_events(count))
