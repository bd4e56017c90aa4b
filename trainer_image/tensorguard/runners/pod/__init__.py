"""One attempt of a job in the pods of a cluster. The operator has resolved the job and created its ledger.

In: the files that the operator mounts. Out: checkpoints and charges from the worker pods, and one sentence on how the
attempt ended from the head pod. The modules, in the order in which an attempt uses them:

- `pod_files` reads the mounted files: the job, the location of its ledger, and in worker pods the job key.
- `attempt` is the driver in the head pod. It starts the workers, and sees neither records nor keys.
- `worker` is one rank in its worker pod: it makes its own shard, then trains.
- `log` writes the log of a worker pod.
"""
