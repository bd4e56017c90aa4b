"""Each task of the contract has its class in the trainer, and neither has one that the other lacks."""

import pkgutil
import subprocess
import sys

import pytest

from tensafe_api.tasks import METRICS, TASKS
from tensorguard.models import tasks
from tensorguard.models.tasks import Task, module_of, task_named


def test_contract_and_trainer_have_the_same_tasks():
    modules = {module.name for module in pkgutil.iter_modules(tasks.__path__)} - {"base"}
    assert modules == {module_of(name) for name in TASKS}


@pytest.mark.parametrize("name", TASKS)
def test_class_fits_its_contract(name):
    import transformers
    from peft import TaskType

    task = task_named(name, labels=2)
    assert isinstance(task, Task) and task.name == type(task).__name__ == name
    assert hasattr(transformers, task.auto_class)
    assert task.peft_type is None or task.peft_type in TaskType.__members__
    assert hasattr(transformers, task.processor_class)
    assert task.heads or not task.contract.classes
    assert set(task.contract.metrics) <= set(METRICS.values())


def test_task_that_the_contract_lacks_is_refused():
    with pytest.raises(KeyError):
        task_named("Base")


@pytest.mark.slow
def test_tokenising_processes_need_no_torch():
    """Every process that tokenises imports the tasks: torch would cost each of them seconds and hundreds of MiB."""
    modules = ", ".join(f"{tasks.__name__}.{module_of(name)}" for name in TASKS)
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'transformers', 'peft'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
