"""One job on one machine.

In: a manifest and a folder. Out: the job with its status, and what the folder keeps: ledger, job key, run log. The
modules, in the order in which a run uses them:

- `driver` is the whole run, and calls all others.
- `earlier_run` decides whether the run in the folder may be resumed.
- `ray_cluster` starts Ray on this machine, and removes it.
- `data_preparation` makes the shards of all workers.
- `status` computes the job's status from the ledger and the run log.
"""
