"""`kubectl tensafe statement`: what the final adapter of a job claims.

In: the job's ledger, which holds everything that the claim rests on. Out: the claim with the ε computed here, the
digests, and where the whole statement is. With `--read`, the file itself, checked as `tensafe verify` does, and against
the ledger.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from tensafe_kubectl.api import Object
from tensafe_kubectl.arguments import add_cluster_options, add_job_or_ledger, options_of
from tensafe_kubectl.connection import connect
from tensafe_kubectl.errors import SUCCEEDED, CommandError
from tensafe_kubectl.ledgers import find_ledger
from tensafe_kubectl.storage import read_stored
from tensafe_kubectl.terminal import cut, print_facts, print_json, print_line, print_stored_json
from tensorguard.cli.arguments import Subparsers
from tensorguard.cli.wording import ADJACENCY_TEXT, steps_text

if TYPE_CHECKING:
    from tensafe_api.resources.ledger import PublishedCheckpointRecord
    from tensafe_kubectl.figures import Figures

_EPILOG = """\
examples:
  kubectl tensafe statement triage -n clinic               the claim, from the ledger in the cluster
  kubectl tensafe statement triage -n clinic --read        read the whole statement from the storage, and check it
  kubectl tensafe statement triage -n clinic --read -o json > statement.json           the file, byte for byte
  tensafe statement s3://clinic/models/triage/final --format html -o statement.html    (the trainer's command)
                                                           the statement as a page for a browser or a printer

--read uses fsspec with the credentials of this machine, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. It compares the
file with the digest, the mechanism and the charges that the ledger holds, and computes each ε again. It needs a package
for the storage: `pipx inject tensafe s3fs` for s3://, gcsfs for gs://. It reads at most 4 MiB, from s3:// or gs://.
While the job exists, the file must be below its spec.checkpoint.uri, which may then be a file:// URI too.

Exit codes: 0 shown; 1 there is no final adapter yet, the file cannot be read or is not the one of the ledger, or the
cluster refuses or does not answer; 2 invalid arguments.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "statement",
        help="show the privacy claim of a job's final adapter",
        description="Show the privacy claim of a job's final adapter from its ledger, and where the statement is.",
        epilog=_EPILOG,
    )
    add_job_or_ledger(parser)
    parser.add_argument("--read", action="store_true", help="read the whole statement from the storage, and check it")
    parser.add_argument(
        "-o",
        dest="output",
        choices=("text", "json"),
        default="text",
        help="text (default; the whole statement is Markdown), or json",
    )
    add_cluster_options(parser)
    parser.set_defaults(handler=_statement)


def _statement(arguments: argparse.Namespace) -> int:
    api = connect(options_of(arguments))
    ledger, job = find_ledger(api, arguments.name)
    from tensafe_kubectl.figures import figures_of

    figures = figures_of(ledger)
    final = figures.final
    if final is None:
        raise _no_statement(figures, job, api.namespace)
    if arguments.read:
        return _print_whole(ledger, figures, final, job, arguments.output)
    claim = _claim(figures, final)
    if arguments.output == "json":
        print_json(claim)
        return SUCCEEDED
    _show(figures, final)
    return SUCCEEDED


def _no_statement(figures: Figures, job: Object | None, namespace: str) -> CommandError:
    name, where = figures.spec.job_name, f"-n {namespace}"
    progress = f"`kubectl tensafe status {name} {where}` shows how far it is" if job else "the job was deleted"
    return CommandError(
        f"{name} has no final adapter{' yet' if job else ''}, so there is no statement of it: {progress}, and `kubectl "
        f"tensafe ledger pledger/{figures.name} {where}` shows what it has spent"
    )


def _claim(figures: Figures, final: PublishedCheckpointRecord) -> dict[str, Any]:
    """What the ledger knows of the statement."""
    shown = figures.as_json()
    kept = (
        *("job", "uid", "ledger", "epsilonClaimed", "epsilonSpent", "targetEpsilon", "delta"),
        *("stepsClaimed", "stepsCharged", "stepsPlanned", "stepsRecharged", "accountant", "mechanism", "datasetDigest"),
    )
    release = final.model_dump(by_alias=True, mode="json")
    return {**{key: shown[key] for key in kept}, "final": release, "statementURI": _uri(final)}


def _uri(final: PublishedCheckpointRecord) -> str:
    from tensafe_api.statement.contents import STATEMENT_FILE

    return f"{final.uri}/{STATEMENT_FILE}"


def _show(figures: Figures, final: PublishedCheckpointRecord) -> None:
    spec, mechanism = figures.spec, figures.spec.mechanism
    before = mechanism.steps_before
    steps = steps_text(figures.claimed, before=before)
    print_line(
        (f"({figures.epsilon_claimed}, {spec.delta})-differential privacy", "bold cyan"),
        f" for one {mechanism.unit.lower()} of {spec.job_name}, of {steps}",
    )
    print_line()
    print_facts(
        [
            ("adapter", final.uri, f"after {steps_text(final.step)}, in attempt {final.attempt}"),
            ("adapter digest", final.digest, ""),
            ("unit", mechanism.unit, ADJACENCY_TEXT[mechanism.adjacency]),
            ("ε claimed", figures.epsilon_claimed, f"of {steps} to sign off; target {spec.target_epsilon}"),
            ("ε spent", figures.epsilon_spent, f"of {steps_text(figures.charged, 'charged', before)}"),
            ("δ", spec.delta, ""),
            ("noise multiplier σ", mechanism.noise_multiplier, f"sample rate q {mechanism.sample_rate}"),
            ("accountant", spec.accountant, "computed now, from the charges in the ledger"),
            ("ledger", figures.name, ""),
            ("statement", _uri(final), f"digest {final.statement_digest}"),
        ]
    )
    print_line()
    print_line("The statement lists what is assumed and what is not covered. It is stored beside the adapter, as")
    print_line("statement.json and statement.md. --read reads it from here" + _where_to_read(final.uri))


def _where_to_read(uri: str) -> str:
    if uri.startswith("pvc://"):
        return ", but not from a PVC: read it in a pod that mounts the PVC."
    return ", with your credentials for the storage."


def _print_whole(
    ledger: Object, figures: Figures, final: PublishedCheckpointRecord, job: Object | None, output: str
) -> int:
    from tensafe_api.statement.contents import digest

    content = read_stored(_uri(final), job)
    if digest(content) != final.statement_digest:
        raise CommandError(
            f"{cut(_uri(final))} is not the statement of the ledger: its digest is {digest(content)}, and the ledger "
            f"holds {final.statement_digest}. It was changed after it was published: do not use it"
        )
    document, page = check_statement(content, _uri(final))
    _compare_with_ledger(document, ledger, figures, final)
    if output == "json":
        print_stored_json(content, document)
    else:
        print(page, end="")
        print(
            "Checked: digest, mechanism and charged steps are those of the ledger, and they give each ε. The ledger "
            f"counts {steps_text(figures.charged, 'charged')}: ε spent is {figures.epsilon_spent}, and ε claimed "
            f"{figures.epsilon_claimed}. What the statement assumes and does not cover is the word of the job's pods"
            + (", and so is the claim of the adapter that it started from." if "startedFrom" in document else ".")
        )
    return SUCCEEDED


def check_statement(content: bytes, uri: str) -> tuple[dict[str, Any], str]:
    """Read a statement that a pod of the job wrote, so it may be anything, and compute each ε again.

    Returns:
        The statement, and its page in Markdown, cleaned for a terminal.

    Raises:
        CommandError: it is no statement, or a figure does not follow from the others. Names what is wrong.
    """
    from tensafe_api.sanitize import clean_document
    from tensafe_api.statement.contents import canonical_json, render_markdown
    from tensorguard.verification.errors import NotVerified
    from tensorguard.verification.privacy_claim import check_claim

    try:
        document: dict[str, Any] = json.loads(content)
        check_claim(document)
        if canonical_json(document) != content:
            raise ValueError("it is not canonical JSON, so programs may read different claims in it")
        page = render_markdown(clean_document(document))
    except UnicodeDecodeError as error:
        raise _unusable(uri, "it is not text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise _unusable(uri, "it is not JSON") from error
    except RecursionError as error:
        raise _unusable(uri, "its JSON is nested too deeply") from error
    except KeyError as error:
        raise _unusable(uri, f"the field {error} is missing") from error
    except NotVerified as error:
        raise _unusable(uri, error.problem) from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _unusable(uri, str(error)) from error
    return document, page


def _compare_with_ledger(
    document: dict[str, Any], ledger: Object, figures: Figures, final: PublishedCheckpointRecord
) -> None:
    """Compare a statement whose figures agree with the ledger. A job charges nothing after its final adapter.

    Raises:
        CommandError: names what differs.
    """
    from tensorguard.ledger.contract import LedgerError
    from tensorguard.ledger.kubernetes_object import decode
    from tensorguard.verification.errors import NotVerified
    from tensorguard.verification.ledgers import LedgerHistory, check_against_ledger

    uri, stated, status = _uri(final), document["spent"], figures.status
    try:
        history = LedgerHistory([decode(ledger)], figures.name)
        check_against_ledger(history, document, final.digest, final.statement_digest, final.signer)
    except (LedgerError, NotVerified) as error:
        raise CommandError(
            f"{cut(uri)} is not the statement of this ledger: {cut(str(error))}. Do not use it"
        ) from error
    for field, kept in {
        "stepsCharged": figures.charged,
        "stepsRecharged": status.steps_recharged if status else 0,
    }.items():
        if stated[field] != kept:
            raise CommandError(
                f"{cut(uri)} is not the statement of this ledger: spent.{field} is {stated[field]}, and the ledger has "
                f"{kept}. Do not use it"
            )


def _unusable(uri: str, why: str) -> CommandError:
    return CommandError(
        f"{cut(uri)} is not a statement that this release can check: {cut(' '.join(why.split())).rstrip('.')}. Do not "
        "rely on it, and ask who published the adapter"
    )
