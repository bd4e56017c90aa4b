"""Finds settings with which OpenMP computes with another number of threads than torch counts.

In: nothing. Out: the environment variable of such a setting, or "".

torch divides a tensor among `torch.get_num_threads()` threads, and the self-test shows that the parts of so many are
exact. OpenMP starts fewer where it may choose (`OMP_DYNAMIC`: by the load of the machine, at each operation) or where
they are limited. Parts that nothing has tested would then be computed. Products of bf16 and fp16 numbers would even
keep what was in memory before, because oneDNN leaves out the parts of threads that did not start.
"""

from __future__ import annotations

import ctypes

import torch


def setting_of_fewer_threads() -> str:
    """The name of the first environment variable because of which OpenMP may start fewer threads than torch counts.

    Returns:
        "" if there is none, or torch was built without OpenMP.
    """
    library = ctypes.CDLL(torch._C.__file__)  # its functions, and those of the libraries that it loads
    try:
        may_choose, limit, levels = (
            int(function())
            for function in (library.omp_get_dynamic, library.omp_get_thread_limit, library.omp_get_max_active_levels)
        )
    except AttributeError:
        return ""
    if may_choose:
        return "OMP_DYNAMIC"
    if limit < torch.get_num_threads():
        return "OMP_THREAD_LIMIT"
    return "OMP_MAX_ACTIVE_LEVELS" if levels < 1 else ""
