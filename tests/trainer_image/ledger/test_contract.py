"""The contract of every ledger. A new backend is one more parameter of the fixture `make_backend` in conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dp_accounting
import pytest
from dp_accounting import rdp
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from tensafe_api.accounting import composition
from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger.contract import Fenced, Ledger, LedgerBusy, LedgerError, LedgerMissing, PublishedCheckpoint

CHECKPOINT = PublishedCheckpoint(
    step=5, attempt=1, uri="file:///out/step-5", digest="sha256:aa", statement_digest="sha256:bb", final=False
)


def acquire(ledger: Ledger, attempt: int = 1, from_step: int = 0) -> None:
    ledger.acquire(attempt=attempt, from_step=from_step)


def take_over(before: Ledger, after: Ledger, attempt: int = 1, from_step: int = 0) -> None:
    """Acquire the ledger with `after`. If a lock prevents this, close `before` first."""
    try:
        acquire(after, attempt, from_step)
    except LedgerBusy:
        before.close()
        acquire(after, attempt, from_step)


class TestContract:
    def test_new_ledger_has_its_specification_and_no_charge(self, backend: Any, spec: LedgerSpec) -> None:
        created = backend.create(spec).read()
        assert created == backend.open().read()
        assert created.spec == spec
        assert (created.attempt, created.incarnation, created.length) == (0, 0, 1)
        assert (created.steps_charged, created.steps_recharged) == (0, 0)
        assert (created.charges, created.checkpoints, created.start_steps) == ((), (), ())
        assert (created.outcome, created.dataset_digest, created.model_weights) == (None, None, None)

    def test_absent_ledger_is_reported_as_missing(self, backend: Any) -> None:
        ledger = backend.open()
        for use in (ledger.read, lambda: ledger.extends("0" * 64, 1), lambda: acquire(ledger)):
            with pytest.raises(LedgerMissing, match="there is no ledger"):
                use()

    def test_second_ledger_does_not_replace_the_first(self, backend: Any, spec: LedgerSpec) -> None:
        first = backend.create(spec)
        acquire(first)
        before = first.charge(3)
        with pytest.raises(LedgerError, match="exists already"):
            backend.create(spec.model_copy(update={"job_name": "other"}))
        assert backend.open().read() == before

    def test_write_without_acquisition_is_refused(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        for write in (
            lambda: ledger.charge(1),
            lambda: ledger.record_checkpoint(CHECKPOINT),
            lambda: ledger.record_dataset("keyed"),
            lambda: ledger.record_model("commit:a", None),
            lambda: ledger.record_outcome("Completed"),
        ):
            with pytest.raises(Fenced):
                write()
        assert ledger.read().length == 1

    def test_charges_add_up_and_other_readers_get_them(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        for steps, total in ((1, 1), (5, 6), (10, 16)):
            assert ledger.charge(steps).steps_charged == total
            assert backend.open().read().steps_charged == total
        (charge,) = ledger.read().charges
        assert (charge.attempt, charge.steps, charge.incarnation) == (1, 16, 1)
        assert charge.holder

    @pytest.mark.parametrize("steps", [0, -1])
    def test_charge_of_less_than_one_step_is_refused(self, steps: int, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        ledger.charge(4)
        with pytest.raises(ValueError, match="at least one step"):
            ledger.charge(steps)
        assert ledger.read().steps_charged == 4

    def test_later_attempt_has_its_own_charge_and_the_total_stays(self, backend: Any, spec: LedgerSpec) -> None:
        first, second = backend.create(spec), backend.open()
        acquire(first)
        first.charge(7)
        take_over(first, second, attempt=2)
        state = second.charge(2)
        assert [(charge.attempt, charge.steps) for charge in state.charges] == [(1, 7), (2, 2)]
        assert state.steps_charged == 9

    def test_earlier_attempt_is_fenced(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger, attempt=2)
        ledger.close()
        late, next_one = backend.open(), backend.open()
        with pytest.raises(Fenced, match="attempt 1 is fenced: attempt 2 has acquired"):
            acquire(late)
        with pytest.raises(Fenced):
            late.charge(1)
        acquire(next_one, attempt=2)
        assert next_one.read().incarnation == 2

    def test_previous_holder_can_no_longer_write(self, backend: Any, spec: LedgerSpec) -> None:
        before, after = backend.create(spec), backend.open()
        acquire(before)
        before.charge(3)
        take_over(before, after)
        state = after.read()
        assert (state.attempt, state.incarnation, state.steps_charged) == (1, 2, 3)
        with pytest.raises(Fenced):
            before.charge(1)
        assert after.charge(1).steps_charged == 4

    def test_repeated_steps_are_charged_again(self, backend: Any, spec: LedgerSpec) -> None:
        """All charges minus the repeated ones always equal the step through which the job is charged."""
        ledger = backend.create(spec)
        history = [
            # attempt, from_step, steps; steps charged in all, repeated ones among them
            ((1, 0, 10), (10, 0)),
            ((1, 4, 2), (12, 6)),
            ((1, 4, 1), (13, 8)),
            ((2, 5, 9), (22, 8)),
            ((3, 0, 1), (23, 22)),
        ]
        for (attempt, from_step, steps), expected in history:
            acquire(ledger, attempt, from_step)
            state = ledger.charge(steps)
            assert (state.steps_charged, state.steps_recharged) == expected
            assert state.steps_charged - state.steps_recharged == from_step + steps

    def test_start_steps_are_those_of_the_attempts_incarnations(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        for attempt, from_step, expected in ((1, 0, (0,)), (1, 3, (0, 3)), (1, 3, (0, 3, 3)), (2, 3, (3,))):
            acquire(ledger, attempt, from_step)
            assert ledger.read().start_steps == expected
        ledger.record_outcome("Suspended")
        acquire(ledger, 2, 5)
        assert ledger.read().start_steps == (5,), "an incarnation with an outcome did not fail"

    def test_outcome_is_of_the_last_incarnation(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        assert ledger.record_outcome("Suspended").outcome == "Suspended"
        acquire(ledger)
        assert ledger.read().outcome is None
        assert ledger.record_outcome("Completed").outcome == "Completed"

    def test_data_set_is_recorded_once(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        recorded = ledger.record_dataset("keyed-a")
        assert recorded.dataset_digest == "keyed-a"
        assert ledger.record_dataset("keyed-a") == recorded
        with pytest.raises(LedgerError, match="the data set is not the one"):
            ledger.record_dataset("keyed-b")
        assert ledger.read() == recorded

    @pytest.mark.parametrize("template", ["sha256:t", None])
    def test_model_and_template_are_recorded_once(self, template: str | None, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        recorded = ledger.record_model("commit:a", template)
        assert (recorded.model_weights, recorded.chat_template_digest) == ("commit:a", template)
        assert backend.open().read() == recorded
        assert ledger.record_model("commit:a", template) == recorded
        for weights, other in (("commit:b", template), ("commit:a", "sha256:other")):
            with pytest.raises(LedgerError, match="the job started with"):
                ledger.record_model(weights, other)
        assert ledger.read() == recorded

    def test_checkpoints_are_kept_as_recorded(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        final = PublishedCheckpoint(step=9, attempt=1, uri="file:///é", digest="d", statement_digest="s", final=True)
        ledger.record_checkpoint(CHECKPOINT)
        assert ledger.record_checkpoint(final).checkpoints == (CHECKPOINT, final)
        assert backend.open().read().checkpoints == (CHECKPOINT, final)

    def test_ledger_extends_each_of_its_earlier_states_and_no_other(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        states = [ledger.read()]
        acquire(ledger)
        states += [ledger.read(), ledger.charge(1), ledger.charge(2), ledger.record_checkpoint(CHECKPOINT)]
        assert len({state.head for state in states}) == len(states)
        for state in states:
            assert ledger.extends(state.head, state.length)
            if backend.knows_old_heads:
                assert not ledger.extends(state.head, state.length + 1)
                assert not ledger.extends(state.head, state.length - 1)
        last = states[-1]
        assert not ledger.extends(last.head, last.length + 1)
        assert not ledger.extends(states[0].head, last.length)
        assert not ledger.extends("0" * 64, 0)
        assert not ledger.extends(states[-1].head, -1)

    def test_close_gives_up_the_ledger(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        ledger.close()
        ledger.close()
        with pytest.raises(Fenced):
            ledger.charge(1)
        acquire(backend.open())

    def test_epsilon_can_be_recomputed_from_its_events(self, backend: Any, spec: LedgerSpec) -> None:
        ledger = backend.create(spec)
        acquire(ledger)
        ledger.charge(2000)
        acquire(ledger, attempt=2, from_step=1900)
        state = ledger.charge(250)
        plain = rdp.RdpAccountant()
        plain.compose(dp_accounting.PoissonSampledDpEvent(0.04, dp_accounting.GaussianDpEvent(1.5 * (1 - 1e-6))), 2250)
        assert composition.epsilon_of_events(state.events, 1e-5) == pytest.approx(plain.get_epsilon(1e-5), rel=1e-12)
        assert composition.epsilon_of_events(state.events, 1e-5) == pytest.approx(7.32934, abs=1e-3)
        again = composition.epsilon_of_events(state.events, composition.job_delta(spec.delta))
        assert again == pytest.approx(composition.job_epsilon(spec.mechanism, 2250, spec.delta, "RDP"), rel=1e-12)


class LedgerHistory(RuleBasedStateMachine):
    """Any order of acquisitions, charges, crashes and reopenings. The number of charged steps never decreases."""

    handles = Bundle("handles")
    make: Callable[[], Any]
    spec: LedgerSpec

    def __init__(self) -> None:
        super().__init__()
        self.backend = type(self).make()
        self.first: Ledger | None = self.backend.create(type(self).spec)
        self.holder: Ledger | None = None
        self.charged = self.published = self.attempt = 0
        self.next_step = self.repeated = 0
        self.seen: list[tuple[str, int]] = []

    @rule(target=handles)
    def open(self) -> Ledger:
        first, self.first = self.first, None
        return first or self.backend.open()

    @rule(ledger=handles, attempt=st.integers(1, 4), from_step=st.integers(0, 30))
    def acquire(self, ledger: Ledger, attempt: int, from_step: int) -> None:
        try:
            ledger.acquire(attempt=attempt, from_step=from_step)
        except Fenced:
            assert attempt < self.attempt
            if self.holder is ledger:
                self.holder = None
            return
        except LedgerBusy:
            assert self.holder not in (None, ledger)
            return
        assert attempt >= self.attempt
        self.repeated += max(0, self.next_step - from_step)
        self.holder, self.attempt, self.next_step = ledger, attempt, from_step

    @rule(ledger=handles, steps=st.integers(1, 20))
    def charge(self, ledger: Ledger, steps: int) -> None:
        if ledger is self.holder:
            ledger.charge(steps)
            self.charged += steps
            self.next_step += steps
            return
        with pytest.raises(Fenced):
            ledger.charge(steps)

    @rule(ledger=handles)
    def publish(self, ledger: Ledger) -> None:
        if ledger is self.holder:
            self.published += 1
            ledger.record_checkpoint(replace(CHECKPOINT, uri=f"file:///out/{self.published}"))

    @rule(ledger=handles, outcome=st.sampled_from(["Completed", "Suspended"]))
    def end(self, ledger: Ledger, outcome: Any) -> None:
        if ledger is self.holder:
            ledger.record_outcome(outcome)

    @rule(ledger=consumes(handles))
    def close(self, ledger: Ledger) -> None:
        ledger.close()
        if ledger is self.holder:
            self.holder = None

    @invariant()
    def nothing_is_forgotten(self) -> None:
        reader = self.backend.open()
        state = reader.read()
        assert state.steps_charged == self.charged
        assert state.steps_recharged == self.repeated
        assert state.attempt == self.attempt
        assert len(state.checkpoints) == self.published
        assert all(reader.extends(head, length) for head, length in self.seen)
        self.seen.append((state.head, state.length))


@pytest.mark.slow
def test_charged_steps_never_decrease_in_any_history(make_backend: Callable[[], Any], spec: LedgerSpec) -> None:
    history = type("LedgerHistory", (LedgerHistory,), {"make": staticmethod(make_backend), "spec": spec})
    examples = make_backend().examples
    run_state_machine_as_test(history, settings=settings(max_examples=examples, stateful_step_count=25))
