"""Compares a checkpoint with the ledger of its job: a folder of a run, or a PrivacyLedger of a cluster.

The ledger shows what the checkpoint alone cannot: that it was published, that none of its charges is left out, and that
it is the newest of its name. A cluster's ledger keeps no old heads, so only a file shows the charges at an old length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensafe_api.resources.mechanism import Mechanism
from tensafe_api.statement.contents import NOT_KNOWN, STATEMENT_FILE
from tensafe_api.statement.document import StatementDocument, parse_statement
from tensorguard.ledger.contract import LedgerError, LedgerMissing, LedgerState, PublishedCheckpoint
from tensorguard.ledger.file import NAME, FileLedger
from tensorguard.verification.errors import NotVerified, job_text

if TYPE_CHECKING:
    from kubernetes import client

LEDGER = "ledger"


@dataclass(frozen=True)
class LedgerHistory:
    """What a check needs of a ledger: its states, oldest first; of a cluster's ledger only the last one is known."""

    states: Sequence[LedgerState]
    name: str

    @property
    def last(self) -> LedgerState:
        return self.states[-1]

    def at(self, length: int) -> LedgerState | None:
        """The state when the ledger had `length` entries; None where it is not known."""
        return next((state for state in self.states if state.length == length), None)


def read_file_ledger(directory: Path) -> LedgerHistory:
    """The ledger in a run's folder, after a check of its chain. Raises NotVerified."""
    try:
        return LedgerHistory(FileLedger(directory).history(), str(directory))
    except (LedgerMissing, NotADirectoryError) as error:
        raise NotVerified(LEDGER, f"{directory} has no {NAME}: pass the folder of the run to --ledger") from error
    except (LedgerError, OSError) as error:
        raise NotVerified(LEDGER, str(error)) from error


def find_cluster_ledger(api: client.CustomObjectsApi, namespace: str, job_uid: str) -> LedgerHistory:
    """The PrivacyLedger of the job with this UID in a namespace. Raises NotVerified."""
    from kubernetes import client
    from urllib3.exceptions import HTTPError

    from tensafe_api.resources.job import GROUP, VERSION
    from tensorguard.ledger.kubernetes import PLURAL, REQUEST_SECONDS
    from tensorguard.ledger.kubernetes_object import decode

    try:
        found: Any = api.list_namespaced_custom_object(
            GROUP, VERSION, namespace, PLURAL, _request_timeout=REQUEST_SECONDS
        )
    except client.ApiException as error:
        raise NotVerified(LEDGER, f"the API server refuses to list ledgers in {namespace} ({error.reason})") from error
    except (HTTPError, OSError) as error:
        raise NotVerified(LEDGER, f"the API server does not answer ({type(error).__name__})") from error
    ours = [each for each in found["items"] if each.get("spec", {}).get("jobUID") == job_uid]
    if not ours:
        raise NotVerified(LEDGER, f"the namespace {namespace} has no ledger of the job with UID {job_uid}")
    try:
        return LedgerHistory([decode(ours[0])], f"{namespace}/{ours[0]['metadata']['name']}")
    except LedgerError as error:
        raise NotVerified(LEDGER, str(error)) from error


def check_against_ledger(
    ledger: LedgerHistory, document: Mapping[str, Any], digest: str, statement_digest: str, signer: str | None
) -> PublishedCheckpoint:
    """Check that the ledger records this checkpoint as the newest of its name, with all of its charges.

    Args:
        document: the checkpoint's statement, whose figures were computed again.
        digest: of its manifest.
        statement_digest: of its statement.
        signer: fingerprint of the key that signed it; None: unsigned.

    Returns:
        The ledger's record of it.

    Raises:
        NotVerified: names what differs.
    """
    last, job, hashes = ledger.last, document["job"], document["hashes"]
    if last.spec.job_uid != job["uid"]:
        own, other = job_text(last.spec.job_name, last.spec.job_uid), job_text(job["name"], job["uid"])
        raise NotVerified(LEDGER, f"is that of the job {own}, and the statement is of {other}")
    recorded = next((each for each in reversed(last.checkpoints) if each.digest == digest), None)
    if recorded is None:
        raise NotVerified(LEDGER, "does not record this checkpoint: it was never published, or its files were replaced")
    newest = next(each for each in reversed(last.checkpoints) if each.uri == recorded.uri)
    if newest.digest != digest:
        raise NotVerified(LEDGER, f"records a newer checkpoint at {recorded.uri}: this one is an older release")
    if recorded.statement_digest != statement_digest:
        raise NotVerified(STATEMENT_FILE, "is not the statement that the ledger records for this checkpoint")
    if recorded.signer != signer:
        who = recorded.signer or "no key"
        raise NotVerified(
            LEDGER, f"records that {who} signed this checkpoint, and it is signed by {signer or 'no key'}"
        )
    if (recorded.step, recorded.attempt) != (job["step"], job["attempt"]):
        raise NotVerified(LEDGER, "records another step of this checkpoint than its statement")
    _check_charges(ledger, document, hashes)
    _check_spec(last, parse_statement(document))
    return recorded


def _check_charges(ledger: LedgerHistory, document: Mapping[str, Any], hashes: Mapping[str, Any]) -> None:
    last, spent = ledger.last, document["spent"]
    if last.length < hashes["ledgerLength"] or last.steps_charged < spent["stepsCharged"]:
        raise NotVerified(LEDGER, "is shorter than it was when this checkpoint was written: entries were removed")
    then = ledger.at(hashes["ledgerLength"])
    if then is not None:
        if then.head != hashes["ledgerHead"]:
            raise NotVerified(LEDGER, "is not the ledger that this checkpoint was written with: its entries differ")
        if then.steps_charged != spent["stepsCharged"]:
            raise NotVerified(
                STATEMENT_FILE,
                f"states {spent['stepsCharged']} charged steps, and the ledger had {then.steps_charged} then",
            )


def _check_spec(ledger: LedgerState, statement: StatementDocument) -> None:
    """Compare what never changes in a ledger once it is set."""
    spec, mechanism = ledger.spec, statement.mechanism
    differing = [
        field.alias or name
        for name, field in Mechanism.model_fields.items()
        if getattr(mechanism, name) != getattr(spec.mechanism, name)
    ]
    if differing:
        raise NotVerified(STATEMENT_FILE, f"states another mechanism than the ledger ({', '.join(differing)})")
    dataset = f"keyed:{ledger.dataset_digest}" if ledger.dataset_digest else NOT_KNOWN
    for field, stated, kept in (
        ("job.name", statement.job.name, spec.job_name),
        ("claim.delta", statement.claim.delta, spec.delta),
        ("claim.targetEpsilon", statement.claim.target_epsilon, spec.target_epsilon),
        ("spent.stepsPlanned", statement.spent.steps_planned, spec.planned_steps),
        ("accounting.accountant", statement.accounting.accountant, spec.accountant),
        ("accounting.unitAtLeast", statement.accounting.unit_at_least, spec.unit_at_least),
        ("hashes.dataset", statement.hashes.dataset, dataset),
        ("lineage", statement.lineage, spec.lineage or NOT_KNOWN),
    ):
        if stated != kept:
            raise NotVerified(STATEMENT_FILE, f"{field} is {stated}, and the ledger has {kept}")
