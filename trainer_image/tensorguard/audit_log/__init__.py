"""The audit log of a run: who did what and when, as JSON lines in a chain of hashes.

In: the states of the ledger after each write, and what else an auditor asks for. Out: lines in a file, or objects in a
store. The modules, from the bottom up:

- `entries` defines the events and their fields, and the chain.
- `line_files` and `line_objects` store lines: in one file, or as one object each where a store cannot append.
- `log` appends entries, and finds out what an existing log has already.
- `ledger_events` derives the entries from the states of the ledger, for the writer and for `tensafe verify`.
- `audited_ledger` is a ledger that logs each of its writes.
- `places` knows where the log of a job is.

The ledger remains the authoritative record. An entry follows the ledger's write, so the log never has a charge that the
ledger lacks, and a resume adds what a killed process could not log.
"""
