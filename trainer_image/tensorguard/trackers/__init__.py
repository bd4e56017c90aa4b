"""Sends the public figures of a run to an experiment tracker: W&B, MLflow or TensorBoard.

In: the folder of a run, or the manifest of a job with its status. Out: a run of the tracker. `tensafe export` and the
callbacks of `tensorguard.integrations` use this package. Both work in a process of their own, which reads what the run
has written, so a tracker that fails or hangs cannot delay a step. The modules, in the order in which a run uses them:

- `figures` is the list of everything that may be sent.
- `history` reads what is to be sent: `RunFolder` from a run's folder, `JobStatus` from a job.
- `tracker` is what a tracker must be able to do; `to_wandb`, `to_mlflow` and `to_tensorboard` do it.
- `sent` remembers in the run's folder what was sent, so that a resumed run stays one run of the tracker.
- `attachments` reads statements and adapters from a job's checkpoints.
- `export` is the whole export, and calls all others.
"""
