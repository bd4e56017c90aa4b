# syntax=docker/dockerfile:1
# Two images of one release, each with this project and the pinned packages of a file in requirements/:
#
#   operator   for the chart's Deployment; without torch and Ray
#   trainer    for the Ray head and workers
#
# `make images` builds both with docker, podman or buildah.
#
# BASE_IMAGE is any image with Python 3.11 or newer, its venv module and bash. A site's own certificates can be mounted
# over /etc/ssl/certs during the build; uv uses them. No build tool stays in an image: uv is installed into the cache
# mount. uv keeps no copies of packages there, because they would be as large as the image. Bytecode is compiled during
# the build, because the image's user cannot write to the packages' folder; in the operator's image that of the modules
# that it imports, which are a quarter of its packages.
#
# The same sources produce the same layers if the builder sets a fixed time (scripts/images). For this, Python checks
# bytecode by hash instead of time, and uv's record of the sources' time is deleted.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS base
ENV VIRTUAL_ENV=/opt/tensafe \
    PATH=/opt/tensafe/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/home/tensafe \
    LOGNAME=tensafe \
    PYTHONUNBUFFERED=1 \
    UV_SYSTEM_CERTS=1 \
    UV_NO_CACHE=1 \
    UV_COMPILE_BYTECODE=1 \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH
# KubeRay starts processes with /bin/bash. The user has a home folder for the caches of Ray and Hugging Face. OpenShift
# runs containers under a user id of the namespace, in group 0: that group may write there, and LOGNAME gives such a user
# a name.
RUN echo 'tensafe:x:1000:1000::/home/tensafe:/bin/bash' >> /etc/passwd && \
    echo 'tensafe:x:1000:' >> /etc/group && \
    install -d -o 1000 -g 0 -m 2775 /home/tensafe && \
    python3 -m venv --without-pip "$VIRTUAL_ENV"
WORKDIR /home/tensafe

# The packages come first and the project after them, so that a change of the code rebuilds only the last layer. A
# change of README.md rebuilds nothing: the package's build needs a README.md, and an empty one is enough.
FROM base AS operator
ENV UV_COMPILE_BYTECODE=0
COPY requirements/operator.txt /tmp/requirements.txt
RUN --mount=type=cache,target=/root/.cache \
    python3 -m venv /root/.cache/tools && /root/.cache/tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check uv==0.13.8 && \
    /root/.cache/tools/bin/uv pip install --requirement /tmp/requirements.txt
COPY pyproject.toml LICENSE /tmp/tensafe/
COPY crds/tensafe_api /tmp/tensafe/crds/tensafe_api
COPY operator/tensafe_operator /tmp/tensafe/operator/tensafe_operator
RUN --mount=type=cache,target=/root/.cache \
    touch /tmp/tensafe/README.md && \
    /root/.cache/tools/bin/uv pip install --no-deps /tmp/tensafe && \
    rm "$VIRTUAL_ENV"/lib/python3.*/site-packages/tensafe-*.dist-info/uv_cache.json && \
    sed --in-place /uv_cache.json/d "$VIRTUAL_ENV"/lib/python3.*/site-packages/tensafe-*.dist-info/RECORD && \
    rm -r /tmp/tensafe /tmp/requirements.txt && \
    python -B -c 'import py_compile, sys, dp_accounting, tensafe_operator.__main__; \
    files = [getattr(each, "__file__", None) or "" for each in sys.modules.values()]; \
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH; \
    [py_compile.compile(each, invalidation_mode=mode) for each in files if each.startswith(sys.prefix) and each.endswith(".py")]' && \
    python -m tensafe_operator --help > /dev/null
LABEL org.opencontainers.image.title="TenSafe operator" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 1000:1000
CMD ["python", "-m", "tensafe_operator"]

# CUDA's libraries are half of the image and change only with torch. A separate layer for them is pulled and stored
# independently of the rest.
FROM base AS trainer
COPY requirements/trainer.txt /tmp/requirements.txt
RUN --mount=type=cache,target=/root/.cache \
    python3 -m venv /root/.cache/tools && /root/.cache/tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check uv==0.13.8 && \
    grep --extended-regexp '^(nvidia|cuda)-' /tmp/requirements.txt > /tmp/cuda.txt && \
    /root/.cache/tools/bin/uv pip install --no-deps --requirement /tmp/cuda.txt && \
    rm /tmp/cuda.txt
RUN --mount=type=cache,target=/root/.cache \
    /root/.cache/tools/bin/uv pip install --requirement /tmp/requirements.txt
COPY pyproject.toml LICENSE /tmp/tensafe/
COPY crds/tensafe_api /tmp/tensafe/crds/tensafe_api
COPY trainer_image/tensorguard /tmp/tensafe/trainer_image/tensorguard
RUN --mount=type=cache,target=/root/.cache \
    touch /tmp/tensafe/README.md && \
    /root/.cache/tools/bin/uv pip install --no-deps /tmp/tensafe && \
    rm "$VIRTUAL_ENV"/lib/python3.*/site-packages/tensafe-*.dist-info/uv_cache.json && \
    sed --in-place /uv_cache.json/d "$VIRTUAL_ENV"/lib/python3.*/site-packages/tensafe-*.dist-info/RECORD && \
    rm -r /tmp/tensafe /tmp/requirements.txt && \
    ray --version && tensafe --help > /dev/null
LABEL org.opencontainers.image.title="TenSafe trainer" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 1000:1000
CMD ["tensafe", "--help"]
