"""The Python API: the same training as `tensafe run`, from a program or a notebook (`docs/python-api.md`)."""

from tensorguard.distributed._accountant import DistributedRDPAccountant
from tensorguard.distributed._callbacks import TenSafeCallback
from tensorguard.distributed._config import DistributedDPConfig, SecureAggregationConfig, TenSafeTrainingConfig
from tensorguard.distributed._errors import ConfigurationError, PrivacyBudgetExceeded, RayTimeoutError, TrainingFailed
from tensorguard.distributed._trainer import TenSafeResult, TenSafeTrainer

__all__ = [
    "ConfigurationError",
    "DistributedDPConfig",
    "DistributedRDPAccountant",
    "PrivacyBudgetExceeded",
    "RayTimeoutError",
    "SecureAggregationConfig",
    "TenSafeCallback",
    "TenSafeResult",
    "TenSafeTrainer",
    "TenSafeTrainingConfig",
    "TrainingFailed",
]
