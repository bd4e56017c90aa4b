"""Checks the methods of callbacks before a training starts, and finds which arguments each of them takes.

In come the objects that a user passed as `callbacks`. Out come the methods to call, by the name of the hook, each with
the optional arguments that it takes. A method that could not be called at its time is refused here, before anything is
spent.

`metrics` is given to a method that has a parameter of that name or takes any keyword. `private_metrics` is given only
to a method that names it: code that stores whatever keywords it receives must not receive private figures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorguard.distributed._callbacks import TenSafeCallback
from tensorguard.distributed._errors import ConfigurationError

METRICS = "metrics"
PRIVATE_METRICS = "private_metrics"
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "on_train_begin": ("trainer",),
    "on_step": ("trainer", "step"),
    "on_epoch_end": ("trainer", "epoch"),
    "on_train_end": ("trainer",),
}
"""The arguments that each hook passes by position."""
_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "on_train_begin": (),
    "on_step": (METRICS, PRIVATE_METRICS),
    "on_epoch_end": (METRICS,),
    "on_train_end": (METRICS,),
}
"""The arguments that each hook passes by keyword, to the methods that take them."""


@dataclass(frozen=True)
class Hook:
    """One method of one callback, and the optional arguments that it takes."""

    method: Callable[..., object]
    takes: frozenset[str]


Hooks = Mapping[str, Sequence[Hook]]
"""The methods to call, by the name of the hook, in the order of the callbacks."""


def hooks_of(callbacks: Sequence[TenSafeCallback], *, internal: bool) -> Hooks:
    """The methods that `callbacks` override.

    Args:
        callbacks: as passed by the user, of any type.
        internal: whether the job keeps private metrics.

    Raises:
        ConfigurationError: names the callback, the method, and the accepted signatures.
    """
    if isinstance(callbacks, TenSafeCallback) or not isinstance(callbacks, Sequence):
        raise ConfigurationError(f"callbacks: must be a list of TenSafeCallbacks, not {type(callbacks).__name__}")
    for number, callback in enumerate(callbacks):
        _check_type(f"callbacks[{number}]", callback)
    return {
        name: [
            _hook(f"callbacks[{number}]: {type(callback).__name__}.{name}", name, callback, internal)
            for number, callback in enumerate(callbacks)
            if _overrides(callback, name)
        ]
        for name in _ARGUMENTS
    }


def _check_type(where: str, callback: object) -> None:
    """Refuse what is no callback, and methods that would never be called."""
    if isinstance(callback, type):
        raise ConfigurationError(f"{where}: is the class {callback.__name__}: pass {callback.__name__}()")
    if not isinstance(callback, TenSafeCallback):
        raise ConfigurationError(f"{where}: must be a TenSafeCallback, not {type(callback).__name__}: derive from it")
    for name in dir(callback):
        if name.startswith("on_") and name not in _ARGUMENTS and callable(getattr(callback, name)):
            raise ConfigurationError(
                f"{where}: {type(callback).__name__}.{name} is never called: known are {', '.join(_ARGUMENTS)}"
            )


def _overrides(callback: TenSafeCallback, name: str) -> bool:
    return getattr(getattr(callback, name), "__func__", None) is not getattr(TenSafeCallback, name)


def _hook(where: str, name: str, callback: TenSafeCallback, internal: bool) -> Hook:
    method = getattr(callback, name)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{where} has no signature that Python knows: {_accepted(name)}") from None
    if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
        raise ConfigurationError(f"{where} is a coroutine or a generator, which nothing would run: write a plain def")
    takes = frozenset(each for each in _OPTIONAL[name] if _takes(signature, each))
    if PRIVATE_METRICS in takes and not internal:
        if signature.parameters[PRIVATE_METRICS].default is inspect.Parameter.empty:
            raise ConfigurationError(
                f"{where} takes private_metrics, but the training keeps none: set private_metrics='Internal', or give "
                "the parameter the default None"
            )
        takes -= {PRIVATE_METRICS}
    if not _fits(signature, name, takes):
        raise ConfigurationError(f"{where} takes {_text(signature)}: {_accepted(name)}")
    return Hook(method, takes)


def _takes(signature: inspect.Signature, argument: str) -> bool:
    """Whether the method has a parameter of this name. Any keyword stands for `metrics` only."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return argument in signature.parameters or (argument == METRICS and inspect.Parameter.VAR_KEYWORD in kinds)


def _fits(signature: inspect.Signature, name: str, takes: frozenset[str]) -> bool:
    """Whether the call binds, and each argument reaches the parameter of its name if there is one."""
    try:
        bound = signature.bind(*_ARGUMENTS[name], **{each: each for each in takes})
    except TypeError:
        return False
    known = (*_ARGUMENTS[name], *_OPTIONAL[name])
    return all(value == parameter for parameter, value in bound.arguments.items() if parameter in known)


def _text(signature: inspect.Signature) -> str:
    """The names of the parameters, without annotations and defaults."""
    bare: Any = inspect.Parameter.empty
    parameters = [each.replace(annotation=bare, default=bare) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=bare))


def _accepted(name: str) -> str:
    forms, arguments = [], list(_ARGUMENTS[name])
    for argument in (None, *_OPTIONAL[name]):
        arguments += [argument] if argument else []
        forms.append(f"{name}(self, {', '.join(arguments)})")
    return f"write {' or '.join(forms)}; **kwargs may follow"
