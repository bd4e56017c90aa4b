"""The screen of one job, and the table of several. In: objects as the API server returns them. Out: text, or JSON.

Statuses are read as plain mappings: a newer operator may write fields and reasons that this version does not know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensafe_api.fixes import Fix
from tensafe_api.job_status import MIN_SPEED
from tensafe_api.reasons import ConditionType, Phase, Reason
from tensafe_api.tasks import METRICS
from tensafe_api.timestamps import active_seconds
from tensafe_kubectl.api import Object
from tensafe_kubectl.reading import event_time, part
from tensafe_kubectl.terminal import PHASE_STYLES, age, bar, cut, print_facts, print_line, print_note, print_table
from tensorguard.cli.wording import duration_text, steps_text

WARNINGS_SHOWN = 5
NOT_SEEN = "New"
"""The phase that is shown before an operator has written one."""
_WELL = {
    ConditionType.ACCEPTED.value: "True",
    ConditionType.STALLED.value: "False",
    ConditionType.FAILED.value: "False",
}
"""The status that these conditions have in every job that is well."""


def phase_of(job: Object) -> str:
    """The phase of a job."""
    return part(job, "status.phase") or NOT_SEEN


def condition(job: Object, kind: ConditionType) -> Mapping[str, Any]:
    """The condition of a type; empty where the status has none."""
    found = part(job, "status.conditions") or ()
    return next((each for each in found if each.get("type") == kind.value), {})


def state_of(job: Object) -> tuple[str, str]:
    """Why the job is in its phase: the reason, and a sentence. No other phase follows once it is deleted."""
    if part(job, "metadata.deletionTimestamp"):
        return "Deleting", "The job is being deleted. `kubectl tensafe explain` names the finalizers that keep it."
    if phase_of(job) == NOT_SEEN:
        return "", "No operator has written a status yet."
    stalled, ready = condition(job, ConditionType.STALLED), condition(job, ConditionType.READY)
    deciding = stalled if stalled.get("status") == "True" else ready
    return str(deciding.get("reason") or ""), str(deciding.get("message") or "")


def cause_of(job: Object) -> tuple[str, str]:
    """What has happened to a job, and what to do about it; empty where no action is needed. A fix that this version
    does not know is at the end of the condition's message.
    """
    (word, message), blocker = state_of(job), part(job, "status.blocker") or {}
    reason = Reason.named(word)
    general = reason.fix if reason is not None else ""
    if blocker.get("reason") != word:
        return message, general
    fix = Fix.named(blocker.get("fix"))
    if fix is None and blocker.get("fix"):
        return message, ""
    what = ": ".join(filter(None, (blocker.get("object"), blocker.get("message"))))
    return what, fix.text if fix else general


def is_blocked(job: Object) -> bool:
    """Whether the job waits for a user's action and has not ended."""
    return condition(job, ConditionType.STALLED).get("status") == "True" and not is_final(job)


def is_final(job: Object) -> bool:
    """Whether no other phase can follow."""
    return phase_of(job) in [phase.value for phase in Phase if phase.final]


def problems(job: Object) -> list[Mapping[str, Any]]:
    """The conditions that need attention."""
    running = phase_of(job) == Phase.RUNNING
    well = {**_WELL, **({ConditionType.PODS_READY.value: "True"} if running else {})}
    found = part(job, "status.conditions") or ()
    return [each for each in found if each.get("status") != well.get(each.get("type"), each.get("status"))]


def as_json(job: Object, warnings: Sequence[Object] | None, notes: Sequence[str]) -> dict[str, Any]:
    """What the screen shows, for a program. `notRead` lists what the caller may not read."""
    return {
        **row_as_json(job),
        "problems": problems(job),
        "warnings": None if warnings is None else [_warning(event) for event in warnings],
        "status": job.get("status") or {},
        "notRead": list(notes),
    }


def row_as_json(job: Object) -> dict[str, Any]:
    """What the table shows of a job, for a program."""
    metadata, (reason, message) = job["metadata"], state_of(job)
    known = Reason.named(reason)
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
        "created": metadata.get("creationTimestamp"),
        "suspend": bool(part(job, "spec.suspend")),
        "phase": part(job, "status.phase"),
        "reason": reason or None,
        "message": message or None,
        "fix": (cause_of(job)[1] or None) if known is not None else None,
        "step": part(job, "status.progress.step"),
        "totalSteps": part(job, "status.progress.totalSteps"),
        "epsilonSpent": part(job, "status.privacy.epsilonSpent"),
        "epsilonClaimed": part(job, "status.privacy.epsilonClaimed"),
        "targetEpsilon": part(job, "spec.privacy.targetEpsilon"),
    }


def show_list(jobs: Sequence[Object], namespace: str | None, now: float) -> None:
    """Print a table of jobs. namespace: None for all namespaces, which adds a column."""
    if not jobs:
        where = f"in the namespace {namespace}" if namespace else "in this cluster"
        print_note(f"no jobs {where}: `kubectl tensafe run JOB.yaml` creates one")
        return
    headers: tuple[str, ...] = ("NAME", "PHASE", "STEP", "ε SPENT", "ε CLAIMED", "TARGET", "AGE", "REASON")
    rows: list[tuple[str, ...]] = [_row(job, now) for job in jobs]
    if namespace is None:
        headers = ("NAMESPACE", *headers)
        rows = [(job["metadata"]["namespace"], *row) for job, row in zip(jobs, rows)]
    print_table(headers, rows)


def show(job: Object, warnings: Sequence[Object], notes: Sequence[str], now: float) -> None:
    """Print the screen of a job."""
    metadata, phase = job["metadata"], phase_of(job)
    _, sentence = state_of(job)
    created = age(metadata.get("creationTimestamp"), now)
    where = f"  namespace {metadata['namespace']}, created {created} ago" if created else ""
    print_line((metadata["name"], "bold cyan"), "  ", (phase, PHASE_STYLES.get(phase, "bold")), (where, "dim"))
    if sentence:
        print_line(sentence)
    if (part(job, "status.observedGeneration") or -1) < (metadata.get("generation") or 0) and phase != NOT_SEEN:
        print_line("The operator has not seen the last change of the spec yet.")
    print_line()
    print_facts(_facts(job, now))
    _show_attempts(job, now)
    if found := problems(job):
        print_line()
        print_table(
            ("NEEDS ATTENTION", "REASON", "SINCE", "MESSAGE"),
            [
                (
                    f"{each['type']}={each['status']}",
                    each.get("reason", ""),
                    age(each.get("lastTransitionTime"), now),
                    each.get("message", ""),
                )
                for each in found
            ],
        )
    known = {each.get("message") for each in found}
    if warnings := [event for event in warnings if event.get("message") not in known]:
        print_line()
        print_table(
            ("LAST WARNINGS", "REASON", "OBJECT", "MESSAGE"),
            [_warning_row(event, now) for event in warnings[-WARNINGS_SHOWN:]],
        )
    for note in notes:
        print_note(f"not shown: {note}")


def progress_text(job: Object) -> tuple[str, str]:
    """Steps as text, and the remarks on them; empty before the plan is known."""
    progress = part(job, "status.progress") or {}
    done, total = progress.get("step") or 0, progress.get("totalSteps") or 0
    if not total:
        return "", ""
    remarks = []
    if phase_of(job) == Phase.RUNNING and (speed := _speed(progress)):
        remarks.append(f"{progress['stepsPerSecond']} steps/s")
        if done < total:
            remarks.append(f"{duration_text((total - done) / speed)} left")
    return f"{done:,} of {total:,} steps ({100 * done // total} %)", ", ".join(remarks)


def _speed(progress: Mapping[str, Any]) -> float | None:
    """Steps per second; None if unknown. A pod of the job writes it, so it may be near 0 or infinite."""
    speed = float(progress.get("stepsPerSecond") or 0)
    return speed if MIN_SPEED <= speed < math.inf else None


def _row(job: Object, now: float) -> tuple[str, ...]:
    shown = row_as_json(job)
    step = f"{shown['step'] or 0}/{shown['totalSteps']}" if shown["totalSteps"] else ""
    figures = (str(shown[name] or "") for name in ("epsilonSpent", "epsilonClaimed", "targetEpsilon"))
    reason = shown["reason"] if shown["reason"] != shown["phase"] else ""
    return (shown["name"], phase_of(job), step, *figures, age(shown["created"], now), reason or "")


def _facts(job: Object, now: float) -> Iterator[tuple[str, str, str]]:
    privacy, status = part(job, "status.privacy") or {}, job.get("status") or {}
    progress = status.get("progress") or {}
    steps, remark = progress_text(job)
    if steps:
        drawn = bar(progress.get("step") or 0, progress["totalSteps"])
        yield "progress", drawn, ", ".join(filter(None, (steps, remark)))
    yield from _privacy_facts(job, privacy)
    if (workers := status.get("workers")) and not is_final(job):
        yield "workers", f"{workers.get('ready', 0)} of {workers.get('desired', 0)} ready", ""
    if evaluations := status.get("evaluations"):
        last = evaluations[-1]
        measured = [f"{METRICS[name].title} {last[alias]}" for name, alias in _metrics() if last.get(alias)]
        yield "evaluation", measured[0] if measured else f"loss {last['loss']}", f"at step {last['step']:,}"
    if checkpoints := status.get("checkpoints"):
        newest = checkpoints[-1]
        others = f", and {len(checkpoints) - 1} earlier" if len(checkpoints) > 1 else ""
        yield "checkpoint", newest["uri"], f"step {newest['step']:,}, ε {newest['epsilon']}{others}"
    if final := status.get("finalModel"):
        statement = f"kubectl tensafe statement {job['metadata']['name']} -n {job['metadata']['namespace']}"
        yield "final model", final["uri"], f"`{statement}` shows its claim"
    yield "ledger", status.get("ledgerName") or "", ""


def _privacy_facts(job: Object, privacy: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    target = privacy.get("targetEpsilon") or part(job, "spec.privacy.targetEpsilon")
    if spent := privacy.get("epsilonSpent"):
        again = privacy.get("stepsRecharged") or 0
        recharged = f" ({again:,} of them again, after a crash)" if again else ""
        yield (
            "ε spent",
            f"{spent} of {target}",
            f"of {steps_text(privacy.get('stepsCharged') or 0, 'charged')}{recharged}",
        )
        claimed = f"of {steps_text(privacy.get('stepsClaimed') or 0)} to sign off"
        protects = f"; δ {privacy.get('delta')}, unit {privacy.get('unit')}"
        yield "ε claimed", str(privacy.get("epsilonClaimed") or ""), claimed + protects
    elif privacy:
        yield "ε spent", "unknown", f"the ledger is lost; target {target}"
    else:
        yield "ε target", str(target or ""), "nothing was planned or spent yet"


def _show_attempts(job: Object, now: float) -> None:
    attempts = part(job, "status.attempts") or ()
    if not attempts:
        return
    print_line()
    print_table(
        ("ATTEMPT", "STATE", "STARTED", "RAN", "RESTARTS", "EXIT CODE", "MESSAGE"),
        [
            (
                str(each["number"]),
                each.get("reason") or ("ended" if each.get("endTime") else "open"),
                f"{age(each['startTime'], now)} ago" if each.get("startTime") else "",
                time_run(each, now),
                str(each.get("restarts") or 0),
                str(each.get("exitCode") or ""),
                each.get("message") or "",
            )
            for each in attempts
        ],
    )


def time_run(attempt: Mapping[str, Any], now: float) -> str:
    """How long an attempt has run, without its time in a queue."""
    get = attempt.get
    seconds = active_seconds(get("startTime"), get("endTime"), get("queuedSince"), get("queuedSeconds"), now)
    return "" if seconds is None else duration_text(seconds)


def _metrics() -> list[tuple[str, str]]:
    """Each metric with its name in a status."""
    from pydantic.alias_generators import to_camel

    return [(name, to_camel(name)) for name in METRICS]


def _warning(event: Object) -> dict[str, Any]:
    about = event.get("involvedObject") or {}
    return {
        "time": event_time(event),
        "reason": event.get("reason"),
        "object": f"{about.get('kind')}/{about.get('name')}",
        "message": event.get("message"),
        "count": event.get("count") or 1,
    }


def _warning_row(event: Object, now: float) -> tuple[str, ...]:
    shown = _warning(event)
    seen = f"{age(shown['time'], now)} ago" + (f" (x{shown['count']})" if shown["count"] > 1 else "")
    return (seen, *(cut(str(shown[each] or "")) for each in ("reason", "object", "message")))
