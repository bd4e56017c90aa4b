"""Keeps Intel's matrix library (MKL) from choosing a kernel by the address of a matrix.

In: nothing. Out: a setting of the process, or a refusal.

MKL reads its setting at its first product, and never again. A product that came before would leave it without the
setting, so the worker asks MKL which setting it uses.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT"}
"""Environment variables with which MKL gives the same bits wherever a matrix is in memory."""

_ALL = -1
_OFF = 1  # MKL_CBWR_ALL and MKL_CBWR_BRANCH_OFF of mkl_types.h


def use_reproducible_products() -> bool:
    """Make MKL use only kernels that do not depend on addresses, for the whole process. Call it before the first
    product of matrices.

    Returns:
        Whether MKL has the setting. True where torch was built without MKL, or does not say which setting MKL uses.
    """
    os.environ.update(ENVIRONMENT)
    if not torch.backends.mkl.is_available():
        return True
    try:
        setting = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).mkl_serv_cbwr_get
    except (OSError, AttributeError):
        return True
    return int(setting(_ALL)) != _OFF
