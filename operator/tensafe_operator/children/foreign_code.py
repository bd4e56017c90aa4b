"""The variables with which a job could bring foreign code into the processes of its pods."""

from __future__ import annotations

FOREIGN_CODE_VARIABLES = (
    *("LD_PRELOAD", "LD_AUDIT", "GCONV_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONNOUSERSITE"),
    *("PYTHONPYCACHEPREFIX", "PYTHONPLATLIBDIR", "PYTHONBREAKPOINT"),
    "BROWSER",  # with PYTHONWARNINGS=all:0:antigravity.x:0:0, Python runs this command when it starts
    *("SHELLOPTS", "BASHOPTS", "PS4"),
    *("OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "PERFTOOLS_PATH"),
    "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES",
    *("INTEL_LIBITTNOTIFY64", "INTEL_JIT_PROFILER64"),  # libraries that oneDNN loads before a product of matrices
    "TORCH_ADDR2LINE_BINARY",  # with TORCH_SHOW_CPP_STACKTRACES, torch runs it for each error
    *("NCCL_ENV_PLUGIN", "NCCL_PROFILER_PLUGIN"),
    "KUBECONFIG",  # runs a command for credentials, and can name a server that invents the job's ledger
)
"""Variables with which the processes of an image run other code than its own: for the linker, Python, shells, OpenSSL,
Ray's profiler, oneDNN, torch, NCCL, and clients of Google and of the API server. Where a Secret or ConfigMap gives a
worker variables, these are empty.
"""
FOREIGN_SERVER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""Variables that name the API server, which holds the job's ledger. Kubernetes sets them, so they cannot be empty."""
INJECTION_VARIABLES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "OMP_TOOL_LIBRARIES")
"""Variables of profilers, whose libraries CUDA, NVTX and OpenMP load. An empty value may be an error for these."""
