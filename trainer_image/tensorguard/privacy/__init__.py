"""The privacy mechanism of one worker: tensors in, tensors out.

In: a model with a loss for each record, and micro-batches. Out: an integer sum of clipped gradients, and integer noise.
The modules, in the order in which a step uses them:

- `stream` is the secret randomness that all others draw from.
- `sampling` selects the units of a step.
- `gradients` computes the gradient of each record.
- `clipping` bounds the gradient of each unit, and rounds it to the integer grid.
- `noise` draws discrete Gaussian noise on that grid.

`aggregation` then adds the workers' sums. ε is computed by `tensafe_api.accounting.composition`, not here.
"""
