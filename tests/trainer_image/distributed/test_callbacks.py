"""Callbacks: which signatures are accepted, what each hook passes, and what an exception costs."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorguard.distributed import ConfigurationError, TenSafeCallback, TenSafeTrainer, TenSafeTrainingConfig
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.training.config import PRIVATE_METRICS, RUN_LOG

RECORDS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
Make = Callable[..., TenSafeTrainingConfig]


class Guide(TenSafeCallback):
    """With the signatures and the formatted values of the Ray Train guide of TenSafe 4.0."""

    def on_train_begin(self, trainer, **kwargs):
        print("begin")

    def on_step(self, trainer, step, metrics, **kwargs):
        if step % 5 == 0:
            print(f"step {step}: loss={metrics['loss']:.4f}")

    def on_epoch_end(self, trainer, epoch, metrics, **kwargs):
        print(f"epoch {epoch}: eval_loss={metrics['eval_loss']:.4f}")

    def on_train_end(self, trainer, **kwargs):
        print(f"end: {trainer.epsilon_spent:.2f}")


@pytest.mark.slow
def test_callback_of_the_guide_runs_unchanged(
    fake: Any, config: Make, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    fake.losses = tuple(1 / step for step in range(1, 11))
    trainer = TenSafeTrainer(config=config(), callbacks=[Guide()])
    trainer.fit(RECORDS, RECORDS[:10])
    assert capsys.readouterr().out.splitlines() == [
        "begin",
        "step 5: loss=nan",
        "step 10: loss=nan",
        "epoch 1: eval_loss=0.1000",  # of the evaluation after the epoch's last step
        f"end: {trainer.epsilon_spent:.2f}",
    ]
    assert "the training loss is an exact function of private data" in str(recwarn.pop(UserWarning).message)


class Recorder(TenSafeCallback):
    """Keeps the metrics of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, float]]] = []

    def on_step(self, trainer, step, metrics):
        assert trainer.epsilon_spent <= metrics["dp_epsilon_spent"] < trainer.epsilon_spent + 0.001
        self.calls.append(("step", metrics))

    def on_epoch_end(self, trainer, epoch, metrics):
        self.calls.append(("epoch", metrics))

    def on_train_end(self, trainer, metrics):
        self.calls.append(("end", metrics))


def test_metrics_are_public_figures_of_the_step(fake: Any, config: Make) -> None:
    fake.losses = (0.9, 0.7)
    recorder = Recorder()
    result = TenSafeTrainer(config(learning_rate=0.1, warmup_ratio=0.2), [recorder]).fit(RECORDS, RECORDS[:10])
    assert [name for name, _ in recorder.calls] == [*["step"] * 10, "epoch", "end"]
    steps = [metrics for name, metrics in recorder.calls if name == "step"]
    public = {"step", "total_steps", "epoch", "learning_rate", "dp_epsilon_spent", "dp_steps_charged"}
    measured = {"eval_step", "eval_loss", "eval_accuracy"}
    assert set(steps[0]) == public and all(set(each) == public | measured for _, each in recorder.calls[1:])
    assert [each["step"] for each in steps] == list(range(1, 11))
    assert [round(each["epoch"], 9) for each in steps] == [number / 10 for number in range(1, 11)]
    assert [each["eval_loss"] for each in steps[1:]] == [0.9, *[0.7] * 8]
    assert [each["eval_accuracy"] for _, each in recorder.calls[1:]] == [0.55, *[0.65] * 10]
    assert [each["eval_step"] for each in steps[1:]] == [1, *[2] * 8]
    assert [each["dp_steps_charged"] for each in steps] == list(range(1, 11))
    assert [round(each["learning_rate"], 4) for each in steps[:4]] == [0.0333, 0.0667, 0.1, 0.0875]
    assert steps[-1]["dp_epsilon_spent"] == result.metrics["dp_epsilon_spent"]
    assert json.loads(json.dumps(recorder.calls[-1][1]))["total_steps"] == 10


@pytest.mark.slow
def test_missing_metrics_name_the_reason(fake: Any, config: Make) -> None:
    class Curious(TenSafeCallback):
        def on_train_end(self, trainer, metrics):
            assert "loss" not in metrics and metrics.get("loss") is None
            with pytest.warns(
                UserWarning, match="'eval_f1'] is NaN, because it is not measured so far: known are step"
            ):
                assert math.isnan(metrics["eval_f1"])
            with pytest.raises(KeyError, match="grad_norm: known are step, total_steps"):
                metrics["grad_norm"]

    class Early(TenSafeCallback):
        def on_step(self, trainer, step, metrics):
            if step == 1:
                with pytest.warns(
                    UserWarning, match="'eval_loss'] is NaN, .* not measured so far: pass an eval_dataset"
                ):
                    assert math.isnan(metrics["eval_loss"])

    fake.losses = (0.5,)
    TenSafeTrainer(config(), [Early(), Curious()]).fit(RECORDS, RECORDS[:5])


def accept(*names: str, method: str = "on_step") -> type[TenSafeCallback]:
    """A callback class whose method has these parameters."""
    space: dict[str, Any] = {}
    exec(f"def {method}(self, {', '.join(names)}): pass", space)
    return type("Mine", (TenSafeCallback,), {method: space[method]})


@pytest.mark.parametrize(
    "names",
    [
        ("trainer", "step"),
        ("t", "n"),
        ("trainer", "step", "metrics"),
        ("trainer", "step", "metrics=None"),
        ("trainer", "step", "metrics", "**kwargs"),
        ("trainer", "step", "**kwargs"),
        ("trainer", "step", "*", "metrics"),
        ("trainer", "*rest"),
        ("*arguments", "**kwargs"),
        ("trainer", "step", "verbose=False"),
        ("trainer", "step", "private_metrics=None"),
    ],
    ids=", ".join,
)
def test_signature_that_can_be_called_is_accepted(fake: Any, config: Make, names: tuple[str, ...]) -> None:
    assert TenSafeTrainer(config(), [accept(*names)()]).fit(RECORDS).phase == "Succeeded"


@pytest.mark.parametrize(
    ("method", "names", "found"),
    [
        ("on_step", ("trainer",), "(trainer)"),
        ("on_step", ("trainer", "metrics"), "(trainer, metrics)"),
        ("on_step", ("step", "trainer"), "(step, trainer)"),
        ("on_step", ("trainer", "step", "loss"), "(trainer, step, loss)"),
        ("on_step", ("trainer", "step", "metrics", "/"), "(trainer, step, metrics, /)"),
        ("on_step", ("trainer", "metrics", "step"), "(trainer, metrics, step)"),
        ("on_epoch_end", ("trainer", "metrics"), "(trainer, metrics)"),
        ("on_epoch_end", ("trainer", "epoch", "private_metrics"), "(trainer, epoch, private_metrics)"),
        ("on_train_begin", ("trainer", "metrics"), "(trainer, metrics)"),
        ("on_train_end", (), "()"),
    ],
    ids=str,
)
def test_signature_that_cannot_be_called_is_refused_before_anything_starts(
    fake: Any, config: Make, method: str, names: tuple[str, ...], found: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TenSafeTrainer(config(private_metrics="Internal"), [TenSafeCallback(), accept(*names, method=method)()])
    assert str(refused.value).startswith(f"callbacks[1]: Mine.{method} takes {found}: write {method}(self, trainer")
    assert "**kwargs may follow" in str(refused.value)
    assert fake.calls == []


def test_refusal_lists_the_accepted_signatures(config: Make) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TenSafeTrainer(config(), [accept("trainer")()])
    assert str(refused.value) == (
        "callbacks[0]: Mine.on_step takes (trainer): write on_step(self, trainer, step) or "
        "on_step(self, trainer, step, metrics) or on_step(self, trainer, step, metrics, private_metrics); "
        "**kwargs may follow"
    )


class Misspelt(TenSafeCallback):
    def on_step_end(self, trainer, step):
        pass


class Waiting(TenSafeCallback):
    async def on_step(self, trainer, step):
        pass


class Opaque(TenSafeCallback):
    on_step = functools.partial(int)


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        ([Misspelt()], r"callbacks\[0\]: Misspelt.on_step_end is never called: known are on_train_begin, on_step,"),
        ([Waiting()], r"callbacks\[0\]: Waiting.on_step is a coroutine or a generator, .* write a plain def"),
        ([Guide], r"callbacks\[0\]: is the class Guide: pass Guide\(\)"),
        ([print], r"callbacks\[0\]: must be a TenSafeCallback, not builtin_function_or_method: derive from it"),
        (Guide(), r"callbacks: must be a list of TenSafeCallbacks, not Guide"),
        ([Opaque()], r"callbacks\[0\]: Opaque.on_step has no signature that Python knows: write on_step"),
    ],
    ids=["misspelt", "coroutine", "class", "function", "no list", "without a signature"],
)
def test_callback_that_would_never_run_is_refused(config: Make, callbacks: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        TenSafeTrainer(config(), callbacks)


def test_exception_at_the_begin_costs_nothing(config: Make, tmp_path: Path) -> None:
    """With the real runner: neither Ray nor a worker has started, so no model is needed."""

    class Tracker(TenSafeCallback):
        ended = False

        def on_train_begin(self, trainer):
            assert trainer.epsilon_spent == 0.0
            raise LookupError("no project of this name")

        def on_train_end(self, trainer):
            self.ended = True

    tracker = Tracker()
    with pytest.raises(LookupError, match="no project of this name") as raised:
        TenSafeTrainer(config(), [tracker]).fit(RECORDS)
    assert "nothing was spent" in raised.value.__notes__[0]
    assert tracker.ended
    run = tmp_path / "checkpoints" / "run"
    assert not (run / LEDGER).exists()
    assert [json.loads(line)["kind"] for line in (run / RUN_LOG).read_text().splitlines()] == ["ended"]


def test_exception_lets_the_workers_finish_the_charged_steps(fake: Any, config: Make) -> None:
    class Fails(TenSafeCallback):
        def on_step(self, trainer, step):
            raise LookupError("the tracker is gone")

    with pytest.raises(LookupError):
        TenSafeTrainer(config(), [Fails()]).fit(RECORDS)
    stop = fake.calls[0]["stop"]
    assert stop.requested and not stop


class Trusted(TenSafeCallback):
    def __init__(self) -> None:
        self.figures: list[dict[str, float] | None] = []

    def on_step(self, trainer, step, private_metrics=None):
        self.figures.append(private_metrics)


class Keeper(TenSafeCallback):
    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def on_step(self, trainer, step, **kwargs):
        self.kept.append(kwargs)


@pytest.mark.parametrize("kind", ["Hidden", "Internal"])
def test_private_metrics_reach_only_callbacks_that_name_them(
    fake: Any, config: Make, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "checkpoints.private"
    folder.mkdir()

    def write(step: int) -> None:
        for rank in range(2):
            line = {"step": step, "units": 9, "records": 9, "trainingLoss": step, "clippedFraction": 1, "meanNorm": 2}
            with (folder / PRIVATE_METRICS.format(rank=rank)).open("a") as file:
                file.write(json.dumps(line) + "\n")

    fake.at_step = write
    first, keeper, second = Trusted(), Keeper(), Trusted()
    TenSafeTrainer(config(private_metrics=kind), [first, keeper, second]).fit(RECORDS)
    assert fake.calls[0]["job"].spec.observability.private_metrics == kind
    if kind == "Internal":
        assert [each["loss"] for each in first.figures if each] == list(range(1, 11))
        assert first.figures[0] == {"units": 18, "records": 18, "loss": 1, "clipped_fraction": 1, "mean_norm": 2}
    else:
        assert first.figures == [None] * 10
    assert second.figures == first.figures
    assert all(set(kept) == {"metrics"} for kept in keeper.kept)
    assert not any("loss" in each["metrics"] or "units" in each["metrics"] for each in keeper.kept)


def test_callback_that_needs_private_metrics_is_refused_where_they_are_hidden(config: Make) -> None:
    with pytest.raises(ConfigurationError, match="set private_metrics='Internal', or give the parameter the default"):
        TenSafeTrainer(config(), [accept("trainer", "step", "private_metrics")()])
