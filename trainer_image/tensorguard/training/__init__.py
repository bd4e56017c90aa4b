"""One rank of a training, from a new process to the last checkpoint. It needs a channel to the other ranks, and no Ray.

In: a `WorkerConfig` and a channel. Out: checkpoints, charges in the ledger, and log records. The modules, in the order
in which a rank uses them:

- `worker` is the whole rank, and calls all others. `config` holds its parameters.
- `setup` loads and checks the components of a step; `schedule` is the learning rate of each step.
- `acquisition` acquires the ledger and finds the first step; `rollback_check` refuses a ledger that was rolled back.
- `step` is one private step. `unit_gradients` computes its gradients, and `budget_gate` charges the ledger before the
  reveal.
- `evaluation` evaluates the model on the evaluation set. `private_metrics` keeps figures that are never published.
- `checkpointing` writes, publishes and restores checkpoints; `statement_inputs` collects what a statement needs.
- `run_log`, `stop_signal` and `collective_errors` serve all of them: log records, requests to stop, and failures that
  all ranks share.
"""
