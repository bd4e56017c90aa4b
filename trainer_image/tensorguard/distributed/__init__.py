"""The Python API: the same training as `tensafe run`, from a program or a notebook (`docs/python-api.md`)."""

from tensorguard.distributed.accountant import DistributedRDPAccountant
from tensorguard.distributed.callbacks import TenSafeCallback
from tensorguard.distributed.config import DistributedDPConfig, SecureAggregationConfig, TenSafeTrainingConfig
from tensorguard.distributed.errors import ConfigurationError, PrivacyBudgetExceeded, RayTimeoutError, TrainingFailed
from tensorguard.distributed.trainer import TenSafeResult, TenSafeTrainer

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
