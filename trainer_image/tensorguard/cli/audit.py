"""`tensafe audit`: attacks the privacy claim of a job with canaries, and compares what the attack finds with the claim.

In: a manifest. Out: the lower bounds of ε beside the ε that the ledger accounts, as text or JSON, and on request a
picture. `tensorguard.canary_audit` runs the audit; this module serves the user at a terminal.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Subparsers, add_manifest_arguments, number_type, whole_number
from tensorguard.cli.exit_codes import FAILED, INTERRUPTED, INVALID, SUCCEEDED, CommandError
from tensorguard.cli.standard_output import only_results_on_stdout
from tensorguard.cli.wording import steps_text

if TYPE_CHECKING:
    from tensorguard.canary_audit.canaries import Scores
    from tensorguard.canary_audit.job_audit import Audit, AuditResult
    from tensorguard.cli.job_loading import LoadedJob

_EPILOG = """\
examples:
  tensafe audit job.yaml                                 attack all steps of the job, without its data
  tensafe audit job.yaml --steps 100 --canaries 20000    fewer steps, a stronger attack
  tensafe audit job.yaml --plot audit.png                also draw the scores of the canaries
  tensafe audit job.yaml -o json | jq .refuted           the verdict alone, for a script
  tensafe audit job.yaml --with-data --output-dir audits/first
                                                         canaries among the records, charged to a ledger

How it works: a canary is an invented record whose gradient is one clip norm in a coordinate of its own. Each canary is
in the data with probability 1/2. It passes through the real steps: sampling, clipping, noise of every worker, masks,
aggregation and decoding. Its score is the sum over the steps of what was decoded at its coordinate. The attack guesses
that the highest scores are of canaries that are in, and the lowest of canaries that are out. At a low sampling rate it
only guesses "in". Too many correct guesses refute the claim.

How to read it: "ε at least, by guesses" assumes nothing about the noise (Steinke, Nasr and Jagielski 2023, "Privacy
Auditing with One (1) Training Run"). Such a bound is far below the true ε, so the range to expect of a job that keeps
its claim is printed beside it: a low bound does not mean that a run is more private than claimed. "ε at least, by
noise" measures the noise, and assumes that it is Gaussian. It is close to the claim, and finds a worker without noise.
An audit can refute a claim. It never proves one.

Without --with-data, no data and no model are read and the gradients of records are zero, so the audit costs no ε. With
it, the job trains as in a run, its folder has a ledger that is charged for each step, and no adapter is written. These
charges add to those of every other training on the same data.

Exit codes: 0 the claim is not refuted; 1 a lower bound exceeds the claimed ε, or the audit failed; 2 invalid manifest
or arguments; 130 stopped by Ctrl-C.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "audit",
        help="attack a job's privacy claim with canaries",
        description="Attack a job's privacy claim: run its steps on this machine with canaries, bound ε from below by\n"
        "what they reveal, and compare the bounds with the ε that the ledger accounts for these steps.",
        epilog=_EPILOG,
    )
    add_manifest_arguments(parser)
    parser.add_argument(
        "--canaries",
        metavar="M",
        type=whole_number,
        default=5000,
        help="number of canaries (default: 5000); more make the bounds sharper",
    )
    parser.add_argument(
        "--steps", metavar="T", type=whole_number, help="number of steps (default: all steps of the job)"
    )
    parser.add_argument(
        "--guesses",
        metavar="K",
        type=whole_number,
        help='number of guesses of "in", and as many of "out" (default: the best for the claim, found before any step)',
    )
    parser.add_argument(
        "--confidence",
        metavar="P",
        type=number_type(lambda value: 0.5 < value < 1, "above 0.5 and below 1"),
        default=0.95,
        help="confidence of the bound by guesses (default: 0.95)",
    )
    parser.add_argument(
        "--with-data", action="store_true", help="train on the job's data with canaries among it: charges a ledger"
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="with --with-data: folder of the audit's ledger and its scores (default: tensafe-runs/NAME-audit)",
    )
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="also draw the scores and the bounds")
    parser.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="text (default) or json")
    parser.set_defaults(handler=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    from tensorguard.cli.job_loading import load_job

    loaded = load_job(arguments.manifest, arguments.overrides)
    _check(arguments, loaded)
    with only_results_on_stdout():
        from tensorguard.canary_audit.job_audit import Audit, AuditFailed
        from tensorguard.canary_audit.lower_bound import GuessPlan
        from tensorguard.canary_audit.ranks import AuditSize
        from tensorguard.runners.preflight import RunRefused
        from tensorguard.training.collective_errors import describe_error

        given = None if arguments.guesses is None else GuessPlan(arguments.guesses, arguments.guesses)
        steps = arguments.steps or loaded.plan.steps
        size = AuditSize(arguments.canaries, steps)
        audit = Audit.of(loaded.plan, size, 1 - arguments.confidence, given)
        print(
            f"audit: {size.canaries:,} canaries, {steps_text(steps)}, {audit.guesses.highest:,} guesses of in and "
            f"{audit.guesses.lowest:,} of out; starting the workers",
            file=sys.stderr,
        )
        started = time.monotonic()
        try:
            scores = _scores(arguments, loaded, audit)
        except KeyboardInterrupt:
            print("tensafe audit: interrupted; there is no result", file=sys.stderr)
            return INTERRUPTED
        except RunRefused as refusal:
            raise CommandError(f"tensafe audit: {refusal}", INVALID) from refusal
        except AuditFailed as failure:
            raise CommandError(f"tensafe audit: {failure}", failure.exit_code or FAILED) from failure
        except Exception as error:
            if not hasattr(error, "reason"):
                raise
            raise CommandError(f"tensafe audit: {describe_error(error)[1]}", FAILED) from error
        seconds = time.monotonic() - started
    result = audit.judge(scores)
    if arguments.output == "json":
        print(json.dumps(figures(result, arguments.confidence), indent=2), flush=True)
    else:
        _print_text(arguments, loaded, result, seconds)
    if arguments.plot is not None:  # last: a full disk does not take the figures, which may have cost ε
        _draw(arguments.plot, loaded, result)
    return FAILED if result.refuted else SUCCEEDED


def _check(arguments: argparse.Namespace, loaded: LoadedJob) -> None:
    """Refuse arguments that fit neither each other nor the job. Raises CommandError."""
    plan, steps = loaded.plan, arguments.steps
    if arguments.canaries < 2:
        raise CommandError(f"tensafe audit: --canaries {arguments.canaries}: at least 2 are needed, and 5000 are usual")
    if arguments.guesses is not None and not 1 <= arguments.guesses <= arguments.canaries // 2:
        raise CommandError(
            f"tensafe audit: --guesses {arguments.guesses} is out of range: it must be from 1 to half of --canaries "
            f"({arguments.canaries // 2})"
        )
    if steps == 0 or (steps or 0) > plan.steps:
        raise CommandError(f"tensafe audit: --steps {steps} is out of range: the job has 1 to {plan.steps} steps")
    wanted = steps or plan.steps
    within = plan.affordable_steps(0, wanted)
    if within < wanted:
        raise CommandError(
            f"tensafe audit: the budget of the job ends after {within} steps, so {wanted} cannot be audited: write "
            f"--steps {within}, or raise spec.privacy.targetEpsilon"
        )
    if arguments.output_dir is not None and not arguments.with_data:
        raise CommandError("tensafe audit: --output-dir needs --with-data: an audit without data has no ledger to keep")
    if arguments.plot is not None and not arguments.plot.absolute().parent.is_dir():
        raise CommandError(
            f"tensafe audit: --plot {arguments.plot}: No such file or directory: create its folder", FAILED
        )


def _scores(arguments: argparse.Namespace, loaded: LoadedJob, audit: Audit) -> Scores:
    from tensorguard.canary_audit.job_audit import scores_with_records, scores_without_records

    if not arguments.with_data:
        return scores_without_records(loaded.completed, loaded.plan, audit.size)
    from tensorguard.cli.display import display_for
    from tensorguard.cli.signals import StopOnSignal
    from tensorguard.training.stop_signal import StopSignal

    signals, stop = StopOnSignal(), StopSignal()
    shown = dataclasses.replace(loaded.plan, steps=audit.size.steps)

    def announce(_: str) -> None:
        display.print_line("stopping: an audit that is stopped has no result, and its charged steps stay charged")

    with signals.installed(), display_for(shown) as display, signals.requesting(stop, announce):
        return scores_with_records(
            loaded.job,
            audit.size,
            output_dir=output_dir_of(arguments, loaded).absolute(),
            base_dir=Path(arguments.manifest).absolute().parent,
            listener=display.show,
            stop=stop,
        )


def output_dir_of(arguments: argparse.Namespace, loaded: LoadedJob) -> Path:
    """The folder of an audit with records."""
    given: Path | None = arguments.output_dir
    return given or Path("tensafe-runs") / f"{loaded.job.metadata.name}-audit"


def figures(result: AuditResult, confidence: float) -> dict[str, object]:
    """The result as JSON values."""
    claimed, expected, guesses = result.claimed, result.expectation, result.guesses
    return {
        "refuted": result.refuted,
        "claimed": {
            "epsilon": claimed.epsilon,
            "delta": claimed.delta,
            "steps": claimed.steps,
            "sampleRate": claimed.sample_rate,
            "noiseMultiplier": claimed.noise_multiplier,
        },
        "byGuesses": {
            "epsilonAtLeast": result.one_run,
            "confidence": confidence,
            "canaries": guesses.canaries,
            "guesses": guesses.guesses,
            "correct": guesses.correct,
            "refuted": result.refuted_by_guesses,
            "expected": {"low": expected.low, "median": expected.median, "high": expected.high},
            "largestPossible": expected.largest,
        },
        "byNoise": {
            "epsilonAtLeast": result.noise_bound if math.isfinite(result.noise_bound) else None,
            "noiseMultiplierAtMost": result.sigma_at_most if math.isfinite(result.sigma_at_most) else None,
            "refuted": result.refuted_by_noise,
        },
    }


def _print_text(arguments: argparse.Namespace, loaded: LoadedJob, result: AuditResult, seconds: float) -> None:
    from tensafe_api.resources.mechanism import round_up
    from tensorguard.cli.tables import print_facts

    claimed, expected, guesses = result.claimed, result.expectation, result.guesses
    data = "with the job's data" if arguments.with_data else "without data"
    print_facts(
        [
            ("ε claimed", round_up(claimed.epsilon, 3), f"{steps_text(claimed.steps)}, δ = {claimed.delta:.4g}"),
            (
                "ε at least, by guesses",
                f"{result.one_run:.3f}",
                f"{guesses.correct:,} of {guesses.guesses:,} guesses correct, confidence {arguments.confidence:g}",
            ),
            (
                "  to expect",
                f"{expected.low:.2f} to {expected.high:.2f}",
                f"of a job that keeps its claim; {expected.largest:.2f} if every guess were correct",
            ),
            (
                "ε at least, by noise",
                f"{result.noise_bound:.3f}",
                f"σ is at most {result.sigma_at_most:.4f}, claimed {claimed.noise_multiplier:g}; confidence 0.999999",
            ),
        ],
        f"audit of {loaded.job.metadata.name}: {guesses.canaries:,} canaries, "
        f"{loaded.plan.mechanism.workers} workers, {data} ({seconds:.0f} s)",
    )
    print()
    for sentence in verdict(result, with_data=arguments.with_data):
        print(sentence)
    if arguments.with_data:
        from tensorguard.ledger.file import FileLedger

        directory = output_dir_of(arguments, loaded)
        charged = FileLedger(directory).read().steps_charged  # in chunks, so possibly more than ran
        print(f"Charged {steps_text(charged)} to the ledger in {directory}; no adapter was written.")


def verdict(result: AuditResult, *, with_data: bool = False) -> list[str]:
    """The result in sentences."""
    claimed, expected = result.claimed, result.expectation
    if result.refuted:
        by = [
            *(["its guesses are correct too often"] if result.refuted_by_guesses else []),
            *(["there is less noise than claimed"] if result.refuted_by_noise else []),
        ]
        return [f"Refuted: the steps are less private than the ledger accounts them, since {' and '.join(by)}."]
    sentences = ["Not refuted: no lower bound exceeds the claimed ε. This is no proof of the claim."]
    if expected.largest <= claimed.epsilon:
        sentences += [
            f"Guesses alone could not refute it: even if all were correct, the bound would be {expected.largest:.2f}.",
            "For that, use many more --canaries or fewer --steps.",
        ]
    if with_data:
        sentences.append("The gradients of the records are in the scores as well, which lowers both bounds.")
    elif result.one_run < expected.low:
        sentences.append("The guesses did worse than expected of this mechanism, which costs no privacy.")
    return sentences


def _draw(path: Path, loaded: LoadedJob, result: AuditResult) -> None:
    from tensorguard.cli.audit_picture import draw_audit

    try:
        draw_audit(path, loaded.job.metadata.name, result)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandError(f"tensafe audit: --plot {path}: {reason}", FAILED) from error
