"""Writes docs/reference/ from the code: one page for each resource, and one for the reasons of a status.

The page of a resource comes from the schema that the API server enforces. It has one table for each block, with type,
default and description of every field, and a list of the block's rules. The page of the reasons comes from
`tensafe_api.reasons`. The pages are never edited by hand:

    python docs/generate.py [--check]
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from tensafe_api.driver_exit_codes import driver_exit_code
from tensafe_api.fixes import Fix
from tensafe_api.reasons import ConditionType, EventReason, Phase, Reason
from tensafe_api.resources.job import API_VERSION, KIND
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_api.resources.profile import PROFILE_KIND
from tensafe_api.schema.crd import JOBS, LEDGERS, PROFILES, ResourceKind, open_api_schema, write_files
from tensafe_kubectl.main import command_parser as plugin_parser
from tensafe_operator.gate import guard_gauge
from tensafe_operator.job_metrics import JobMetrics
from tensafe_operator.names import METRICS_PREFIX
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensorguard.cli.main import command_parser
from tensorguard.statements.report import StatementReport

REFERENCE = Path(__file__).parent / "reference"
Schema = Mapping[str, Any]

WRITTEN = "Written by `python docs/generate.py` from"
JOB_PAGE = f"""\
# {KIND}

`{API_VERSION}`. {WRITTEN} `crds/tensafe_api/resources`; do not edit.

Numbers with a privacy meaning are decimal **strings**: quote them. A field marked *required* has no default,
because only the author of a manifest can know its value.
"""
LEDGER_PAGE = f"""\
# {LEDGER_KIND}

`{API_VERSION}`. {WRITTEN} `crds/tensafe_api/resources`; do not edit.

The privacy budget that one job has spent. The operator creates the ledger before the first attempt and freezes
everything that ε depends on in `spec`. Only the service account of the workers writes `status`, from the pod that
acquired the ledger. The ledger has no owner reference: it stays when the job is deleted. Users never write a ledger. A
user who may impersonate that account, or create its tokens, can add charges and checkpoints; [the threat
model](../explanation/threat-model.md) says what such a user can and cannot do.
"""
PROFILE_PAGE = f"""\
# {PROFILE_KIND}

`{API_VERSION}`, cluster-scoped. {WRITTEN} `crds/tensafe_api/resources`; do not edit.

Settings of a cluster that its administrator keeps. A job takes them with `cluster.profileRef`; a value that the job
gives takes precedence. [Keep settings in a profile](../how-to/profiles.md) has the rules. "Default" below is what
applies where neither the job nor the profile gives a value.
"""
REASONS_PAGE = f"""\
# Phases, conditions and reasons

{WRITTEN} `crds/tensafe_api/reasons.py`; do not edit.

```sh
kubectl describe tsj NAME      # conditions, attempts, and the Events of the last hour
kubectl get tsj NAME -o jsonpath='{{.status.conditions[?(@.type=="Stalled")].message}}'
kubectl wait tsj/NAME --for=condition=Succeeded --timeout=24h
```

Names are added, but never changed or given another meaning, so scripts can rely on them.
"""

COMMANDS_PAGE = f"""\
# The tensafe command

{WRITTEN} `trainer_image/tensorguard/cli`; do not edit.
"""
PLUGIN_PAGE = f"""\
# The kubectl plugin

{WRITTEN} `operator/tensafe_kubectl`; do not edit.
"""
METRICS_PAGE = f"""\
# Metrics

{WRITTEN} `operator/tensafe_operator`; do not edit.

The operator serves these metrics at `/metrics` on the port that the chart's value `metrics.port` names. All of them are
public: none is an exact function of private data. The series of a job, `tensafe_job_…`, are deleted with the job; with
`metrics.perJob: false` there are none. The series `tensafe_jobs_…` are of all jobs of a namespace and phase: they are
gauges, because jobs leave a phase and are deleted. [Monitoring](../how-to/monitoring.md) shows how to use them.
"""


def fields_of(schema: Schema) -> Schema:
    """The properties of an object, or of the objects in a list; empty for anything else."""
    inner = schema.get("items", schema)
    return inner.get("properties", {})


def type_of(schema: Schema) -> str:
    """The type of a field as text, with its bounds and its allowed values."""
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {type_of(schema['items'])}"
    if "additionalProperties" in schema:
        return "map of strings"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    return f"{schema['type']} {', '.join(bounds)}".strip()


def default_of(name: str, schema: Schema, required: Sequence[str]) -> str:
    """The fixed default in YAML. Computed defaults are in the description of the field."""
    if name in required:
        return "*required*"
    default = schema.get("default")
    if default is None or isinstance(default, Mapping | list):
        return ""
    return f"`{default}`" if "enum" in schema else f"`{json.dumps(default)}`"


def tables(path: str, schema: Schema) -> Iterator[str]:
    """The table of one block and of every block in it, outer blocks first."""
    inner = schema.get("items", schema)
    lines = [f"\n## {path}\n", inner.get("description") or schema["description"], ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields_of(schema).items():
        meaning = field.get("description", "").replace("|", "\\|")
        lines.append(
            f"| `{name}` | {type_of(field)} | {default_of(name, field, inner.get('required', ()))} | {meaning} |"
        )
    rules = [rule["message"] for rule in inner.get("x-kubernetes-validations", ())]
    if rules:
        lines += ["", "Rules:", "", *(f"- {message}" for message in rules)]
    yield "\n".join(lines) + "\n"
    for name, field in fields_of(schema).items():
        if fields_of(field):
            yield from tables(f"{path}.{name}{'[]' if 'items' in field else ''}", field)


def resource_page(introduction: str, kind: ResourceKind) -> str:
    """The page of a resource."""
    properties = open_api_schema(kind)["properties"]
    blocks = [block for block in ("spec", "status") if block in properties]
    return introduction + "".join(part for block in blocks for part in tables(block, properties[block]))


def reasons() -> str:
    """The page of phases, conditions, reasons and Events."""
    lines = ["\n## Phases\n", "| phase | final | meaning |", "|---|---|---|"]
    lines += [f"| `{phase}` | {'yes' if phase.final else ''} | {meaning} |" for phase, meaning in _documented(Phase)]
    lines += ["\n## Conditions\n", "| condition | meaning |", "|---|---|"]
    lines += [f"| `{condition}` | {meaning} |" for condition, meaning in _documented(ConditionType)]
    lines += ["\n## Reasons\n", "Conditions, attempts and warning Events have one of these reasons.\n"]
    lines += ["### Reasons that need no action\n"]
    lines += ["| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason}` | {reason.sentence} |" for reason in sorted(Reason, key=str) if not reason.fix]
    lines += [part for reason in sorted(Reason, key=str) if reason.fix for part in _with_fix(reason)]
    lines += ["\n## Fixes\n", "`status.blocker.fix` names one of these where the fix of the reason is too general."]
    lines += [f"\n### `{fix}`\n\n{_wrapped(fix.text)}" for fix in Fix]
    lines += ["\n## Events\n", f"{' '.join((EventReason.__doc__ or '').split())}\n", "| event | meaning |", "|---|---|"]
    lines += [f"| `{event}` | {meaning} |" for event, meaning in _documented(EventReason)]
    return REASONS_PAGE + "\n".join(lines) + "\n"


def _with_fix(reason: Reason) -> Iterator[str]:
    """The section of a reason about which a user can do something."""
    yield f"\n### `{reason}`\n\n{_wrapped(reason.sentence)}\n\n{_wrapped(f'**What to do:** {reason.fix}')}"
    if (code := driver_exit_code(reason)) != 1:
        yield f"\nExit code of the trainer's driver: {code}, {'not retried' if reason.permanent else 'retried'}."


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _documented(kind: type[Phase] | type[ConditionType]) -> Iterator[tuple[Any, str]]:
    """Each member of the enumeration with the docstring below it, which Python does not keep at run time."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for assigned, below in itertools.pairwise(body.body):
        if isinstance(assigned, ast.Assign) and isinstance(below, ast.Expr):
            name = assigned.targets[0]
            assert isinstance(name, ast.Name) and isinstance(below.value, ast.Constant)
            yield kind[name.id], str(below.value.value)


def commands(introduction: str, parser: argparse.ArgumentParser) -> str:
    """The page of a command with verbs, from its argument parser."""
    text = introduction + f"\n{parser.description}\n"
    for group in parser._actions:
        if isinstance(group, argparse._SubParsersAction):
            for verb in group.choices.values():
                text += _verb(verb)
    return text


def _verb(parser: argparse.ArgumentParser) -> str:
    lines = [f"\n## {parser.prog}\n", f"{parser.description}\n", "| argument | meaning | default |", "|---|---|---|"]
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
        if action.nargs != 0 and action.option_strings and not value:
            value = action.dest.upper()
        name = ", ".join(action.option_strings) or action.dest
        argument = f"{name} {value}".strip() if action.option_strings else str(value or name)
        default = (
            "*required*"
            if action.required
            else ""
            if action.default in (None, False, [], argparse.SUPPRESS)
            else f"`{action.default}`"
        )
        meaning = (action.help or "") % {"default": action.default}
        lines.append(f"| `{argument}` | {meaning} | {default} |".replace("|`", "| `"))
    epilog = textwrap.dedent(parser.epilog or "").strip()
    return "\n".join(lines) + (f"\n\n```text\n{epilog}\n```\n" if epilog else "\n")


def metrics() -> str:
    """The page of the operator's metrics, from the registry that serves them."""
    lines = ["\n| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, kind, labels, meaning in sorted(operator_metrics()):
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {kind} | {shown} | {meaning} |")
    return METRICS_PAGE + "\n".join(lines) + "\n"


def operator_metrics() -> Iterator[tuple[str, str, Sequence[str], str]]:
    """Name, type, labels and meaning of every metric of one operator."""
    registry = OperatorMetrics(METRICS_PREFIX).registry
    guard_gauge(registry)
    known: list[Any] = [*set(registry._collector_to_names), *JobMetrics(CollectorRegistry()).describe()]
    for each in known:
        in_registry = hasattr(each, "_type")
        name, kind = (each._name, each._type) if in_registry else (each.name, each.type)
        meaning = each._documentation if in_registry else each.documentation
        yield name + ("_total" if kind == "counter" else ""), kind, tuple(each._labelnames), meaning


def report_schema() -> str:
    """The JSON schema of `tensafe statement --format json`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **StatementReport.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def pages() -> dict[str, str]:
    """The text of each page, by file name."""
    return {
        "tensafetrainingjob.md": resource_page(JOB_PAGE, JOBS),
        "privacyledger.md": resource_page(LEDGER_PAGE, LEDGERS),
        "tensafeclusterprofile.md": resource_page(PROFILE_PAGE, PROFILES),
        "conditions-and-reasons.md": reasons(),
        "cli.md": commands(COMMANDS_PAGE, command_parser()),
        "kubectl.md": commands(PLUGIN_PAGE, plugin_parser()),
        "metrics.md": metrics(),
        "statement-report.schema.json": report_schema(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the pages. With `--check` it only compares them: it returns 0 if all are current, 1 if one is stale."""
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    options = parser.parse_args(arguments)
    return write_files(REFERENCE, pages(), "make docs", only_check=options.check)


if __name__ == "__main__":
    sys.exit(main())
