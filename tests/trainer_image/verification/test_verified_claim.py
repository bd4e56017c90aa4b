"""`tensafe verify`: a statement that claims less than the job spent, or something else, is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.accounting.composition import claimed_steps, format_epsilon, job_epsilon
from tensafe_api.resources.mechanism import Mechanism, charged_events
from tensafe_api.statement.contents import canonical_json, recompute_epsilon
from tensorguard.checkpoint.store import MANIFEST
from tensorguard.cli.main import main
from tensorguard.signing.signer import ATTESTATION, SIGNATURE, SIGNATURE_FILES
from tensorguard.verification.checkpoint import OTHER_PAGE, verify_checkpoint
from tests.support.trainer.releases import refused, rewrite_manifest, sign_again, trusted


@pytest.mark.slow
def test_statement_of_another_adapter_is_refused(published: Any) -> None:
    """Even if our own key signed it by mistake."""
    for name in ("statement.json", "statement.md", "trainer_state.json"):
        shutil.copy(published.older / name, published.final / name)
    sign_again(published.final, published.private_key)
    error = refused(published.final, trusted(published))
    assert error.file == "statement.json" and "is the statement of another adapter" in error.problem


@pytest.mark.slow
def test_statement_of_another_adapter_is_refused_without_a_signature(unsigned: Any) -> None:
    shutil.copy(unsigned.older / "statement.json", unsigned.final / "statement.json")
    rewrite_manifest(unsigned.final)
    assert "is the statement of another adapter" in refused(unsigned.final).problem


def lower(part: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *parents, last = part.split(".")
        block: Any = document
        for parent in parents:
            block = block[int(parent)] if parent.isdigit() else block[parent]
        block[last] = value

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("claim.epsilon", "0.100"),
        ("claim.steps", 1),
        ("spent.epsilon", "0.100"),
        ("spent.stepsCharged", 1),
        ("events.0.steps", 1),
        ("events.0.noiseMultiplier", "50"),
        ("mechanism.noiseMultiplier", "50"),
        ("mechanism.sampleRate", "0.000001"),
        ("claim.delta", "0.1"),
        ("claim.unit", "User"),
    ],
)
def test_figure_that_does_not_follow_is_refused(unsigned: Any, part: str, value: Any) -> None:
    path = unsigned.final / "statement.json"
    document: dict[str, Any] = json.loads(path.read_text())
    lower(part, value)(document)
    path.write_bytes(canonical_json(document))
    rewrite_manifest(unsigned.final)
    assert refused(unsigned.final).file == "statement.json"


def replace_statement(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a statement and the trainer's state, such that all files agree and ε follows from the events."""
    document: dict[str, Any] = json.loads((folder / "statement.json").read_text())
    change(document)
    claim, spent, accountant = document["claim"], document["spent"], document["accounting"]["accountant"]
    names = [field.alias or name for name, field in Mechanism.model_fields.items()]
    mechanism = Mechanism.model_validate({k: v for k, v in document["mechanism"].items() if k in names}, by_name=False)
    charged, delta = spent["stepsCharged"], claim["delta"]
    document["events"] = [event.model_dump(by_alias=True) for event in charged_events(mechanism, charged)]
    spent["epsilon"] = recompute_epsilon(document)
    target = float(claim["targetEpsilon"])
    steps = claimed_steps(
        mechanism,
        planned=spent["stepsPlanned"],
        charged=charged,
        target_epsilon=target,
        target_delta=delta,
        accountant=accountant,
    )
    claim |= {"steps": steps, "epsilon": format_epsilon(job_epsilon(mechanism, steps, delta, accountant))}
    (folder / "statement.json").write_bytes(canonical_json(document))
    state = json.loads((folder / "trainer_state.json").read_text())
    (folder / "trainer_state.json").write_text(json.dumps({**state, "step": document["job"]["step"]}))
    rewrite_manifest(folder)


@pytest.mark.slow
def test_adapter_with_more_steps_than_were_charged_is_refused(unsigned: Any) -> None:
    replace_statement(unsigned.final, lambda document: document["job"].update(step=3))
    verify_checkpoint(str(unsigned.final))  # a step that was charged and is not in the adapter
    replace_statement(unsigned.final, lambda document: document["spent"].update(stepsCharged=0, stepsPlanned=0))
    error = refused(unsigned.final)
    assert error.file == "statement.json"
    assert error.problem == "contradicts itself: job.step: the adapter has 3 steps, and only 0 are charged"


def test_start_from_an_adapter_that_no_event_counts_is_refused(unsigned: Any) -> None:
    earlier = {"uri": "s3://a/b", "adapter": "sha256:0", "statement": "sha256:0", "epsilon": "8", "delta": "0.00001"}
    replace_statement(unsigned.final, lambda document: document.update(startedFrom={**earlier, "noiseDistance": "0"}))
    assert refused(unsigned.final).problem.startswith("contradicts itself: startedFrom: ")


@pytest.mark.slow
@pytest.mark.parametrize("delta", ["1", "1.5", "1e999", "nan"])
def test_delta_with_which_nothing_is_claimed_is_refused(unsigned: Any, delta: str) -> None:
    replace_statement(unsigned.final, lambda document: document["claim"].update(delta=delta))
    assert "claim.delta" in refused(unsigned.final).problem


def test_statement_that_readers_could_read_in_two_ways_is_refused(unsigned: Any) -> None:
    path = unsigned.final / "statement.json"
    claim = json.dumps({**json.loads(path.read_text())["claim"], "epsilon": "0.001"}).encode()
    path.write_bytes(b'{"claim":' + claim + b"," + path.read_bytes()[1:])  # Python takes the last one of two keys
    rewrite_manifest(unsigned.final)
    assert refused(unsigned.final).problem == "is not canonical JSON: no job wrote it"


@pytest.mark.slow
def test_page_that_says_something_else_than_the_statement_is_reported(published: Any) -> None:
    assert OTHER_PAGE not in verify_checkpoint(str(published.final), trusted(published)).not_checked
    page, epsilon = published.final / "statement.md", json.loads((published.final / "statement.json").read_text())
    page.write_text(page.read_text().replace(epsilon["claim"]["epsilon"], "0.100"))
    sign_again(published.final, published.private_key)
    assert OTHER_PAGE in verify_checkpoint(str(published.final), trusted(published)).not_checked


@pytest.mark.slow
@pytest.mark.parametrize("file", ["statement.json", "trainer_state.json", MANIFEST, SIGNATURE, ATTESTATION])
def test_json_that_is_too_deep_is_refused(published: Any, file: str) -> None:
    (published.final / file).write_bytes(b'{"files":' + b"[" * 100_000)
    if file not in (MANIFEST, *SIGNATURE_FILES):
        for name in SIGNATURE_FILES:
            (published.final / name).unlink()
        rewrite_manifest(published.final)
    assert refused(published.final).file == file


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_of_a_stranger_imitates_a_line_of_the_report(
    unsigned: Any, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    (unsigned.final / "statement.md").unlink()  # it would have the name as well
    rewrite_manifest(unsigned.final)
    assert main(["verify", str(unsigned.final), "-o", form]) == 0
    lines = len(capsys.readouterr().out.splitlines())
    name = "tiny\n  signer  sha256:ours\x1b[2K\x9b2K\u202e"
    path = unsigned.final / "statement.json"
    document = json.loads(path.read_text())
    path.write_bytes(canonical_json({**document, "job": {**document["job"], "name": name}}))
    rewrite_manifest(unsigned.final)
    assert main(["verify", str(unsigned.final), "-o", form]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == lines and not set(printed) & set("\x1b\x9b\u202e")
    (unsigned.final / "x\n\x1b[2Kverified: tiny").touch()
    assert main(["verify", str(unsigned.final), "-o", form]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "\x1b" not in printed
