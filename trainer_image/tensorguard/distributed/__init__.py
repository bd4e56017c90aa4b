"""The Python API: the same training as `tensafe run`, from a program or a notebook (`docs/python-api.md`).

This package's names are the public surface. Its modules are private.
"""

from tensorguard.distributed._accountant import DistributedRDPAccountant
from tensorguard.distributed._callbacks import RunningTrainer, TenSafeCallback
from tensorguard.distributed._checkpoints import TSSPCheckpointCallback
from tensorguard.distributed._config import DistributedDPConfig, SecureAggregationConfig, TenSafeTrainingConfig
from tensorguard.distributed._errors import ConfigurationError, PrivacyBudgetExceeded, RayTimeoutError, TrainingFailed
from tensorguard.distributed._trainer import TenSafeResult, TenSafeTrainer
from tensorguard.inspection.inspection import Inspection

__all__ = [
    "ConfigurationError",
    "DistributedDPConfig",
    "DistributedRDPAccountant",
    "Inspection",
    "PrivacyBudgetExceeded",
    "RayTimeoutError",
    "RunningTrainer",
    "SecureAggregationConfig",
    "TSSPCheckpointCallback",
    "TenSafeCallback",
    "TenSafeResult",
    "TenSafeTrainer",
    "TenSafeTrainingConfig",
    "TrainingFailed",
]


for _error in (ConfigurationError, PrivacyBudgetExceeded, TrainingFailed):
    _error.__module__ = __name__  # tracebacks print the path to import from
