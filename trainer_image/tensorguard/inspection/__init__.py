"""What a job would train: the figures of `tensafe inspect` and `TenSafeTrainer.inspect`, for the data owner's eyes.

- `job` reads the data set and the evaluation set of a job, in this process and without Ray, and makes an `Inspection`.
- `collect` counts the records as a training would prepare them; `ids` finds ids that look alike; `files` describes the
  files; `evaluation` counts the records of the evaluation set.
- `distribution` has the quantiles and histograms of whole numbers, `suggestions` the values that fit the data better.
- `inspection` is the result, with its JSON. `text` and `page` show it.

All figures are exact, so they are private. Memory is bounded by 32 bytes for each record: counters, hashes and lengths
are kept, and no content, except for what `--show-records` asks for.
"""
