"""Callbacks for experiment trackers: `TenSafeTrainer(config, callbacks=[WandbCallback(project="notes")])`.

Names and environment variables are those of Hugging Face's callbacks (`docs/how-to/trackers.md`). Each callback starts
`tensafe export --follow` beside the training. This package's names are the public surface. Its modules are private.
"""

from tensorguard.integrations._callbacks import MlflowCallback, TensorBoardCallback, WandbCallback

MLflowCallback = MlflowCallback
"""Hugging Face's spelling."""
TenSafeMLflowCallback = MlflowCallback
TenSafeWandbCallback = WandbCallback

__all__ = [
    "MLflowCallback",
    "MlflowCallback",
    "TenSafeMLflowCallback",
    "TenSafeWandbCallback",
    "TensorBoardCallback",
    "WandbCallback",
]
