"""The audit of a job's privacy claim: canaries pass through the real steps, and an attack on them bounds ε from below.

In: a job, and a number of canaries. Out: lower bounds of ε beside the ε that the ledger would charge for the same
steps. The modules, from the attack down to the statistics:

- `job_audit` runs an audit, with or without the records of the job, and compares the bounds with the claim.
- `ranks` is the work of one rank: a step of training whose units include canaries.
- `canaries` chooses the canaries, computes their gradients and keeps their scores.
- `expectation` chooses the number of guesses beforehand, and computes which bound to expect.
- `lower_bound` has the statistics: guesses in, a lower bound of ε out.

This is not the audit log of the Python API, which records what a run spends.
"""
