"""Models that can be trained record by record: the base model, its adapter, and the loss of each record.

In: `spec.model` and `spec.lora`. Out: a peft model in which nothing of a record depends on another record. The modules,
in the order in which a model passes them:

- `source` finds the files of the model, and `tokenizer` loads its tokenizer.
- `load` loads the base model. `attention` and `dropout` replace what would read other records; `unsupported` refuses
  what cannot be replaced. `quantized` stores the frozen weights in fewer bits.
- `targets` resolves the names of `spec.lora` to modules, and `lora` attaches the adapter.
- `tasks` has one class for each model task, and `losses` the losses that they choose from.
- `self_test` measures on this machine that a gradient depends on one record alone, and `bit_equality` finds how many
  records can be computed at once without changing a bit of each other's gradients.
- `adapter` reads and writes the adapter's weights in the form that peft loads.
"""
