"""Runs the workers of an attempt under Ray: on one machine (`local`), or in the pods of a cluster (`pod`).

Both use the modules of this folder, and neither imports the other:

- `preflight` checks a job and its machine before a run starts.
- `run_folder` names the entries of the run's folder, and locks it.
- `background` runs work on a thread, while the main thread handles signals.
- `worker_group` runs the workers under Ray Train, and `rendezvous` forms their process group.
"""
