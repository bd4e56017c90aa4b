"""Runs the workers of an attempt under Ray: on one machine (`local`), or in the pods of a cluster (`pod`).

`local` also runs them on the nodes of a Ray cluster that the user has started: there each rank (`nodes`) prepares its
data with the code of a pod. All of them use the modules of this folder:

- `preflight` checks a job and its machine before a run starts.
- `run_folder` names the entries of the run's folder, and locks it.
- `background` runs work on a thread, while the main thread handles signals.
- `worker_group` runs the workers under Ray Train, and `rendezvous` forms their process group.
"""
