"""The variables with which a job could bring foreign code into the processes of its pods."""

from __future__ import annotations

FOREIGN_CODE_VARIABLES = (
    *("LD_PRELOAD", "LD_AUDIT", "GCONV_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONNOUSERSITE"),
    *("PYTHONPYCACHEPREFIX", "PYTHONPLATLIBDIR", "PYTHONBREAKPOINT"),
    *("SHELLOPTS", "BASHOPTS", "PS4"),
)
"""Variables with which the processes of an image run other code than its own, for the linker, Python and shells. Where
a Secret or ConfigMap gives a worker variables, these are empty.
"""
