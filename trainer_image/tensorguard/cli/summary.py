"""The summary of a run, on standard error: how it ended, what to do next, and where its files are.

In: the job with its final status. Out: the user's next action: load the adapter, resume, or fix a fault and resume.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.mechanism import EarlierSteps, earlier_steps_yaml
from tensafe_api.resources.status import Status
from tensafe_api.tasks import METRICS
from tensorguard.cli.wording import steps_text
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.runners.local.private_folder import PrivateFolder

_STYLES = {
    Phase.SUCCEEDED: "bold green",
    Phase.BUDGET_EXHAUSTED: "bold yellow",
    Phase.SUSPENDED: "bold yellow",
    Phase.FAILED: "bold red",
}

_RESUME = "Resume from the last checkpoint"


@dataclass(frozen=True)
class RunOptions:
    """The options of the command that a resume repeats.

    Attributes:
        address: of the Ray cluster.
        signing_key: absolute path or URI; not one that only an environment variable names.
        identity: file; not one that only an environment variable names.
    """

    address: str | None = None
    signing_key: str | None = None
    identity: Path | None = None


NO_OPTIONS = RunOptions()


def resume_command(output_dir: Path, options: RunOptions = NO_OPTIONS) -> str:
    """The command that resumes the run in `output_dir`; it works in any working directory."""
    repeated = ["--address", options.address] if options.address else []
    repeated += ["--signing-key", options.signing_key] if options.signing_key else []
    repeated += ["--identity", str(options.identity.absolute())] if options.identity else []
    command = ["tensafe", "run", str(output_dir / "job.yaml"), *repeated]
    return shlex.join([*command, "--output-dir", str(output_dir), "--resume"])


def print_summary(
    job: TenSafeTrainingJob,
    plan: Plan,
    output_dir: Path,
    picture: Path | None,
    options: RunOptions = NO_OPTIONS,
) -> None:
    """Print how the run of `job` ended.

    Args:
        picture: the report, if drawn.
        options: those that a resume repeats.
    """
    console = Console(stderr=True, highlight=False)
    status = job.status or Status()
    phase = Phase(status.phase or Phase.FAILED)
    _line(console)
    _line(console, phase.value, _STYLES.get(phase, "bold"), f": {_summary(status, plan)}")
    attempt = status.attempts[-1] if status.attempts else None
    if phase is not Phase.SUCCEEDED and attempt is not None and attempt.message:
        _line(console, f"{attempt.reason or 'Reason'}: ", "bold", attempt.message)
    if phase is Phase.BUDGET_EXHAUSTED:
        _line(console, Reason.BUDGET_EXHAUSTED.fix)
    if status.final_model is not None:
        _line(console)
        _line(console, "Start another job from the adapter:", "bold", " write this below spec.lora")
        _line(console)
        for line in _init_from(plan, status.final_model.uri, status.privacy.steps_claimed or 0):
            _line(console, f"    {line}", "cyan")
        _line(console)
        _line(console, "Load the adapter:", "bold")
        _line(console)
        for line in _snippet(job, status.final_model.uri):
            _line(console, f"    {line}", "cyan")
    if phase is Phase.FAILED and status.privacy.steps_charged == 0:
        _line(console, "This job spent nothing", "bold", ": fix the fault above, and run the command again")
    elif not phase.final or phase is Phase.FAILED:
        heading = "After the fix, resume with" if phase is Phase.FAILED else _RESUME
        _print_resume(console, output_dir, heading, options, encrypted=_encrypts(job))
    _line(console)
    for name, place in _places(job, status, output_dir, picture):
        _line(console, f"  {name:<10}", "dim", place)


def print_aborted(output_dir: Path, options: RunOptions = NO_OPTIONS) -> None:
    """Print that a second Ctrl-C aborted the run."""
    console = Console(stderr=True, highlight=False)
    _line(console, "aborted", "bold red", ": no further checkpoint was saved; charged steps stay charged")
    _print_resume(console, output_dir, _RESUME, options)


def _summary(status: Status, plan: Plan) -> str:
    privacy, progress = status.privacy, status.progress
    parts = [f"{progress.step or 0:,} of {plan.steps:,} steps"]
    if privacy.epsilon_spent is not None:
        charged, claimed = privacy.steps_charged or 0, privacy.steps_claimed or 0
        before = plan.mechanism.steps_before
        parts.append(f"ε {privacy.epsilon_spent} spent, of {steps_text(charged, 'charged', before)}")
        signed_off = f"claimed, of {steps_text(claimed, before=before)}, target {plan.target_epsilon:g}"
        parts.append(f"ε {privacy.epsilon_claimed} {signed_off}")
        parts.append(f"δ {plan.delta}")
    if status.evaluations:
        last = status.evaluations[-1]
        measured = [f"{METRICS[name].title} {value}" for name, value in last.metrics().items()]
        parts.append(measured[0] if measured else f"evaluation loss {last.loss}")
    return "; ".join(parts)


def _encrypts(job: TenSafeTrainingJob) -> bool:
    return job.spec.checkpoint.encryption is not None


def _print_resume(
    console: Console, output_dir: Path, heading: str, options: RunOptions, *, encrypted: bool = False
) -> None:
    if not (output_dir / "job.yaml").exists():
        return
    _line(console)
    _line(console, f"{heading}:", "bold")
    _line(console)
    _line(console, f"    {resume_command(output_dir, options)}", "cyan")
    if encrypted and options.identity is None:
        _line(console)
        _line(console, "Its checkpoints are encrypted", "bold", ": a resume needs --identity FILE, or TENSAFE_IDENTITY")


def _snippet(job: TenSafeTrainingJob, uri: str) -> list[str]:
    """Python code that loads the adapter with peft and transformers alone."""
    from tensorguard.models.tasks import task_of

    model, place = job.spec.model, _path(uri)
    adapter = "adapter" if "://" in place or _encrypts(job) else place
    quantised = f"# trained beside an {model.quantization} base: on this whole one, results can differ a little"
    return [
        *_first(job, place),
        *([quantised] if model.quantization else []),
        *task_of(job.spec).loading_lines(repr(_base(job)), repr(adapter), model.label_names),
    ]


def _first(job: TenSafeTrainingJob, place: str) -> list[str]:
    """What comes before the code that loads the adapter, as comments of Python."""
    if _encrypts(job):
        command = shlex.join(["tensafe", "decrypt", place, "--identity", "FILE", "--output", "adapter"])
        return [f"# first: {command}"]
    return [f"# first copy {place} to ./adapter"] if "://" in place else []


def _init_from(plan: Plan, uri: str, claimed: int) -> list[str]:
    """The field of a manifest with which another job starts from the adapter at `uri`."""
    mechanism = plan.mechanism
    own = EarlierSteps(
        sample_rate=mechanism.sample_rate, noise_multiplier=mechanism.noise_multiplier, steps=max(1, claimed)
    )
    return [
        "initFrom:",
        f"  uri: {_path(uri)}",
        f"  earlierSteps: {earlier_steps_yaml([*mechanism.earlier_steps, own])}",
    ]


def _base(job: TenSafeTrainingJob) -> str:
    """The location from which transformers loads the base model: a hub id or a folder (of a package, too)."""
    from tensorguard.models.source import ModelNotFoundError, resolve_model

    model = job.spec.model
    try:
        return resolve_model(model.name, model.revision).location
    except ModelNotFoundError:  # it was found when training started; the hub is unavailable now
        return model.name


def _places(job: TenSafeTrainingJob, status: Status, output_dir: Path, picture: Path | None) -> list[tuple[str, str]]:
    final, private = status.final_model, PrivateFolder.of(output_dir, job.spec.checkpoint.uri)
    holds = (
        "key, tracebacks, private metrics" if private.key_file(job.metadata.uid or "").exists() else "private metrics"
    )
    places: list[tuple[str, str | None]] = [
        ("adapter", final.uri if final else None),
        ("statement", final.statement_uri if final else None),
        ("ledger", _existing(output_dir / LEDGER)),
        ("report", str(picture) if picture else None),
        ("private", f"{private.path} ({holds}: never publish it)" if private.path.exists() else None),
    ]
    return [(name, _path(place)) for name, place in places if place]


def _existing(path: Path) -> str | None:
    return str(path) if path.exists() else None


def _path(uri: str) -> str:
    """A local URI as a path; any other URI unchanged."""
    return uri.removeprefix("file://")


def _line(console: Console, text: str = "", style: str = "", rest: str = "") -> None:
    console.print(Text.assemble((text, style), rest), soft_wrap=True)
