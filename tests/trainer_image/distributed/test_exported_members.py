"""The public surface of `tensorguard.distributed`: what a release may add to, and not take from."""

import importlib
import pkgutil
import traceback
from types import ModuleType

import pytest

import tensorguard.distributed
from tensorguard.distributed import (
    ConfigurationError,
    DistributedDPConfig,
    RunningTrainer,
    TenSafeTrainer,
    TenSafeTrainingConfig,
)

EXPORTED = {
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
}


def test_exported_members_are_those_of_the_package():
    members = vars(tensorguard.distributed)
    public = {name for name, found in members.items() if not name.startswith("_") and not isinstance(found, ModuleType)}
    assert public == set(tensorguard.distributed.__all__) == EXPORTED
    assert list(tensorguard.distributed.__all__) == sorted(EXPORTED)


def test_modules_of_the_package_are_private():
    modules = [module.name for module in pkgutil.iter_modules(tensorguard.distributed.__path__)]
    assert modules
    assert all(name.startswith("_") for name in modules)


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_every_exported_member_has_a_docstring(name):
    assert getattr(tensorguard.distributed, name).__doc__


def test_traceback_of_an_error_names_the_public_package():
    [line] = traceback.format_exception_only(ConfigurationError("x"))
    assert line == "tensorguard.distributed.ConfigurationError: x\n"


def test_trainer_offers_all_that_callbacks_are_promised():
    promised = {name for name in (*vars(RunningTrainer), *RunningTrainer.__annotations__) if not name.startswith("_")}
    assert promised == {"config", "step", "total_steps", "epsilon_spent", "stop"}
    config = TenSafeTrainingConfig(model_name="m", dp_config=DistributedDPConfig(target_epsilon=1))
    trainer = TenSafeTrainer(config)
    assert all(hasattr(trainer, name) for name in promised - {"stop"})


def test_no_module_of_the_package_imports_the_trainer():
    """The trainer is at the top: a module that imported it would make a cycle."""
    for module in pkgutil.iter_modules(tensorguard.distributed.__path__):
        if module.name != "_trainer":
            found = importlib.import_module(f"tensorguard.distributed.{module.name}")
            assert not hasattr(found, "TenSafeTrainer"), module.name
