"""Mistakes in the audit log: in its chain, in what it records and when, and in what `tensafe verify` compares."""

from __future__ import annotations

from mutations.mutation import TRAINER, TRAINING_TESTS, Edit, Mutation

_ENTRIES = TRAINER + "audit_log/entries.py"
_LEDGER = TRAINER + "audit_log/audited_ledger.py"
_EVENTS = TRAINER + "audit_log/ledger_events.py"
_FILE = TRAINER + "audit_log/line_files.py"
_OBJECTS = TRAINER + "audit_log/line_objects.py"
_VERIFY = TRAINER + "verification/audit_logs.py"
_TESTS = "tests/trainer_image/audit_log/"
_LEDGER_TESTS = _TESTS + "test_audited_ledger.py::"
_VERIFY_TESTS = "tests/trainer_image/verification/test_audit_logs.py::"

AUDIT_LOG: tuple[Mutation, ...] = (
    Mutation(
        "a charge or publication that names no entry of the ledger is verified",
        (
            Edit(
                _ENTRIES,
                "    is_write = event in _WRITES or length is not None or head is not None\n",
                "    is_write = length is not None and head is not None and event not in _WRITES\n",
            ),
        ),
        (_VERIFY_TESTS + "test_write_that_names_no_entry_of_the_ledger_is_noticed",),
    ),
    Mutation(
        "a line of the log may have any field",
        (
            Edit(
                _ENTRIES,
                "    if extra := sorted(values.keys() - FIELDS[event] - set(COMMON)):\n",
                "    if extra := sorted(values.keys() - values.keys()):\n",
            ),
        ),
        (_VERIFY_TESTS + "test_field_and_event_that_no_run_writes_are_noticed",),
    ),
    Mutation(
        "the hash of a line does not cover its content",
        (
            Edit(
                _ENTRIES,
                "    return hashlib.sha256(canonical_json(body)).hexdigest()\n",
                '    return hashlib.sha256(str(body["number"]).encode()).hexdigest()\n',
            ),
        ),
        (
            _TESTS + "test_entries.py::test_every_changed_byte_is_noticed",
            _VERIFY_TESTS + "test_changed_byte_of_every_line_is_noticed",
        ),
    ),
    Mutation(
        "the previous line is not checked",
        (
            Edit(
                _ENTRIES,
                '    if values.get("number") != number or values.get("previous") != previous:\n',
                '    if values.get("number") != number:\n',
            ),
        ),
        (_TESTS + "test_entries.py::test_line_in_another_place_is_refused",),
    ),
    Mutation(
        "the same entry in other bytes is accepted",
        (
            Edit(
                _ENTRIES,
                '        intact = values["hash"] == _hash(body) and canonical_json(values) == line\n',
                '        intact = values["hash"] == _hash(body)\n',
            ),
        ),
        (_TESTS + "test_entries.py::test_same_entry_in_other_bytes_is_refused",),
    ),
    Mutation(
        "any field can be written to the audit log",
        (
            Edit(
                _ENTRIES,
                "    if unknown := sorted(values.keys() - FIELDS[event] - set(COMMON)):\n",
                "    if unknown := sorted(set() - FIELDS[event] - set(COMMON)):\n",
            ),
        ),
        (_TESTS + "test_entries.py::test_private_value_cannot_be_written",),
    ),
    Mutation(
        "a charge is not logged",
        (
            Edit(
                _LEDGER,
                "        return self._log_changes(self._ledger.charge(steps))\n",
                "        return self._ledger.charge(steps)\n",
            ),
        ),
        (
            _LEDGER_TESTS + "test_entry_is_written_after_the_ledger_has_accepted",
            _LEDGER_TESTS + "test_refusal_by_another_process_keeps_the_chain",
            "tests/trainer_image/distributed/test_audit_log.py::test_step_that_was_charged_and_not_taken_is_logged",
        ),
    ),
    Mutation(
        "a charge is logged before the ledger has accepted it",
        (
            Edit(
                _LEDGER,
                "        return self._log_changes(self._ledger.charge(steps))\n",
                "        from dataclasses import replace\n\n"
                "        state = self._ledger.read()\n"
                "        (*others, last) = state.charges\n"
                "        charges = (*others, replace(last, steps=last.steps + steps))\n"
                "        self._log_changes(replace(state, charges=charges, length=state.length + 1))\n"
                "        return self._ledger.charge(steps)\n",
            ),
        ),
        (
            _LEDGER_TESTS + "test_charge_that_the_ledger_refuses_is_not_logged",
            _LEDGER_TESTS + "test_entry_is_written_after_the_ledger_has_accepted",
        ),
    ),
    Mutation(
        "a resume does not log what a killed process could not",
        (
            Edit(
                _LEDGER,
                "        for known in self._ledger.history() if isinstance(self._ledger, FileLedger) "
                "else (before, state):\n",
                "        for known in (before, state):\n",
            ),
        ),
        (_LEDGER_TESTS + "test_log_of_a_run_that_had_none_is_complete",),
    ),
    Mutation(
        "a ledger that was rolled back below its audit log is accepted",
        (
            Edit(
                _LEDGER,
                "        if position.length and not self._ledger.extends(position.head, position.length):\n",
                "        if position.length < 0:\n",
            ),
        ),
        (_LEDGER_TESTS + "test_ledger_that_was_rolled_back_is_refused",),
    ),
    Mutation(
        "only the first of several writes is logged",
        (
            Edit(
                _EVENTS,
                "    for checkpoint in state.checkpoints[position.checkpoints :]:\n",
                "    for checkpoint in state.checkpoints[len(state.checkpoints) :]:\n",
            ),
        ),
        (
            _LEDGER_TESTS + "test_several_writes_in_one_state_give_all_their_entries",
            _LEDGER_TESTS + "test_each_write_is_logged_with_who_and_when",
        ),
    ),
    Mutation(
        "a line is not synced to the disk",
        (Edit(_FILE, "            os.fsync(descriptor)\n", ""),),
        (_TESTS + "test_line_files.py::test_line_is_on_the_disk_before_append_returns",),
    ),
    Mutation(
        "a line that a kill cut stays before the next one",
        (Edit(_FILE, "        os.ftruncate(descriptor, self._offset)\n", ""),),
        (
            _TESTS + "test_line_files.py::test_line_that_a_kill_cut_is_replaced",
            _LEDGER_TESTS + "test_line_that_a_kill_cut_is_written_again",
        ),
    ),
    Mutation(
        "a line of another process is overwritten in an object store",
        (Edit(_OBJECTS, 'self._fs.pipe_file(path, content, mode="create")', "self._fs.pipe_file(path, content)"),),
        (_TESTS + "test_line_objects.py::test_lines_are_stored_as_objects",),
    ),
    Mutation(
        "a charge of the ledger that the log lacks is not noticed",
        (
            Edit(
                _VERIFY,
                "            if (entry.event, found) != (event, expected):\n",
                "            if entry.event == Event.OPEN and (entry.event, found) != (event, expected):\n",
            ),
        ),
        (_VERIFY_TESTS + "test_charge_that_the_log_hides_is_noticed_with_the_ledger",),
    ),
    Mutation(
        "a charge of the log that the ledger lacks is not noticed",
        (
            Edit(
                _VERIFY,
                "    if (extra := next(logged, None)) is not None:\n",
                "    if (extra := next(logged, None)) is not None and not entries:\n",
            ),
        ),
        (_VERIFY_TESTS + "test_charge_that_the_ledger_lacks_is_noticed",),
    ),
    Mutation(
        "a log that was replaced as a whole is accepted for a checkpoint",
        (
            Edit(
                _VERIFY,
                "    if entries[length - 1].hash != head:\n",
                "    if not entries[length - 1].hash:\n",
            ),
        ),
        (_VERIFY_TESTS + "test_log_that_was_replaced_is_noticed_with_the_checkpoint",),
    ),
    Mutation(
        "a wrong sum of charges is accepted",
        (Edit(_VERIFY, "        if total != position.steps_charged:\n", "        if total < 0:\n"),),
        (_VERIFY_TESTS + "test_wrong_sum_of_charges_is_noticed",),
    ),
    Mutation(
        "the statement does not name the audit log",
        (
            Edit(
                TRAINER + "training/worker.py",
                "                audit_log=self.audit.position,\n",
                "                audit_log=None,\n",
            ),
        ),
        (_VERIFY_TESTS + "test_checkpoint_and_log_are_verified_together",),
    ),
    Mutation(
        "a refusal is not logged",
        (
            Edit(
                TRAINER + "training/worker.py",
                "        self.audit.log_failure(reason, message)\n",
                "",
            ),
        ),
        (TRAINING_TESTS + "test_audit_trail.py::test_refused_resume_is_logged_with_its_reason",),
    ),
)
