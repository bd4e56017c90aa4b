"""`kubectl tensafe ledger`: the ε that a job has spent, computed again from the charges of its PrivacyLedger.

In: the ledger, and the job if it exists. Out: charges, published checkpoints, and each ε beside the one in the job's
status. Both are computed by the same code, but at different times and in different places.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.arguments import (
    add_all_namespaces,
    add_cluster_options,
    add_job_or_ledger,
    add_output,
    options_of,
    refuse_name_in_all_namespaces,
)
from tensafe_kubectl.connection import connect
from tensafe_kubectl.errors import FAILED, SUCCEEDED
from tensafe_kubectl.ledgers import find_ledger, list_ledgers
from tensafe_kubectl.reading import part
from tensafe_kubectl.screen import is_final
from tensafe_kubectl.terminal import print_facts, print_json, print_line, print_note, print_table
from tensorguard.cli.arguments import Subparsers
from tensorguard.cli.tables import PUBLISHED, published_rows
from tensorguard.cli.wording import ADJACENCY_TEXT, steps_text

if TYPE_CHECKING:
    from tensafe_kubectl.figures import Figures

_EPILOG = """\
examples:
  kubectl tensafe ledger -n clinic                     the ledgers of the namespace, also those of deleted jobs
  kubectl tensafe ledger triage -n clinic
  kubectl tensafe ledger triage -n clinic -o json | jq .epsilonSpent

A note names the ledgers of other jobs that had the name. Every ε is computed here from the charged steps. Beside it is
the one of the job's status, which the operator wrote. While the job trains, that can be some seconds behind, and it
rounds the charged steps up to the next 64th of the plan.

Exit codes: 0 shown; 1 there is no ledger, the status of an ended job has another ε, or the cluster refuses or does not
answer; 2 invalid arguments.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "ledger",
        help="show what a job has spent, computed again from its charges",
        description="Show the charges and the published checkpoints of a job's PrivacyLedger, and ε computed again\n"
        "from the charges. A ledger stays when its job is deleted.",
        epilog=_EPILOG,
    )
    add_job_or_ledger(parser, optional="list the ledgers")
    add_all_namespaces(parser, "ledgers")
    add_output(parser)
    add_cluster_options(parser)
    parser.set_defaults(handler=_ledger)


def _ledger(arguments: argparse.Namespace) -> int:
    refuse_name_in_all_namespaces(arguments, "ledger: a ledger")
    api = connect(options_of(arguments))
    if not arguments.name:
        return _list(api, None if arguments.all_namespaces else api.namespace, arguments.output)
    ledger, job = find_ledger(api, arguments.name)
    from tensafe_kubectl.figures import figures_of

    figures = figures_of(ledger)
    differs = _difference(figures, job)
    if arguments.output == "json":
        stored = {"job": None} if job is None else part(job, "status.privacy") or {}
        print_json({**figures.as_json(), "inStatus": stored})
    else:
        _show(figures, job)
    if differs:
        print_note(differs)
        return FAILED
    return SUCCEEDED


def _list(api: Api, namespace: str | None, output: str) -> int:
    ledgers = list_ledgers(api, namespace)
    rows = [
        {
            "namespace": ledger["metadata"]["namespace"],
            "ledger": ledger["metadata"]["name"],
            "job": part(ledger, "spec.jobName"),
            "stepsCharged": sum(charge["steps"] for charge in part(ledger, "status.charges") or ()),
            "stepsPlanned": part(ledger, "spec.plannedSteps"),
            "targetEpsilon": part(ledger, "spec.targetEpsilon"),
            "outcome": part(ledger, "status.outcome"),
        }
        for ledger in ledgers
    ]
    if output == "json":
        print_json({"ledgers": rows})
    elif not rows:
        print_note(f"no ledgers {f'in the namespace {namespace}' if namespace else 'in this cluster'}")
    else:
        keys = [key for key in rows[0] if namespace is None or key != "namespace"]
        headers = {
            "namespace": "NAMESPACE",
            "ledger": "LEDGER",
            "job": "JOB",
            "stepsCharged": "STEPS CHARGED",
            "stepsPlanned": "PLANNED",
            "targetEpsilon": "TARGET",
            "outcome": "OUTCOME",
        }
        print_table(
            [headers[key] for key in keys], [["" if row[k] is None else str(row[k]) for k in keys] for row in rows]
        )
    return SUCCEEDED


def _difference(figures: Figures, job: Object | None) -> str:
    """What to say where the status of an ended job has another ε than its ledger gives; empty where both agree, and
    while the job trains: its status may be behind, and rounds the number of charged steps up.
    """
    stored = part(job, "status.privacy.epsilonSpent")
    if job is None or not is_final(job) or stored in (None, figures.epsilon_spent):
        return ""
    both = f"the status of the job says ε spent {stored}, and the charges of its ledger give {figures.epsilon_spent}"
    return f"{both}: the ledger counts. Report this to the maintainers if the operator runs"


def _show(figures: Figures, job: Object | None) -> None:
    spec, status = figures.spec, figures.status
    before = spec.mechanism.steps_before
    stored = part(job, "status.privacy") or {}
    print_line((spec.job_name, "bold cyan"), (f"  ledger {figures.name}", "dim"))
    if job is None:
        print_line("The job was deleted. What it spent stays spent.")
    print_line()
    claimed = f"of {steps_text(figures.claimed, before=before)}"
    print_facts(
        [
            (
                "ε spent",
                figures.epsilon_spent,
                f"of {steps_text(figures.charged, 'charged', before)}; target {spec.target_epsilon}"
                + _beside(stored.get("epsilonSpent"), figures.epsilon_spent),
            ),
            (
                "ε claimed",
                figures.epsilon_claimed,
                f"{claimed} to sign off{_beside(stored.get('epsilonClaimed'), figures.epsilon_claimed)}",
            ),
            ("δ", spec.delta, ""),
            ("unit", spec.mechanism.unit, ADJACENCY_TEXT[spec.mechanism.adjacency]),
            ("noise multiplier σ", spec.mechanism.noise_multiplier, f"sample rate q {spec.mechanism.sample_rate}"),
            ("accountant", spec.accountant, ""),
            ("charged again", f"{status.steps_recharged:,}" if status else "0", "steps that ran again after a crash"),
            ("outcome", (status.outcome if status else None) or "none yet", ""),
            ("head", status.head[:16] if status else "", f"of {status.length:,} entries" if status else ""),
        ]
    )
    if status is None:
        print_line()
        print_line("No worker has acquired the ledger yet: nothing is spent.")
        return
    print_line()
    print_table(
        ("ATTEMPT", "STEPS CHARGED", "INCARNATIONS", "POD UID"),
        [(str(each.attempt), f"{each.steps:,}", str(each.incarnation), each.pod_uid) for each in status.charges],
    )
    if status.releases:
        print_line()
        print_table(PUBLISHED, published_rows(status.releases))


def _beside(stored: str | None, computed: str) -> str:
    """How the figure in the job's status compares with the computed one."""
    if stored is None:
        return ""
    return "; the status agrees" if stored == computed else f"; the status says {stored}"
