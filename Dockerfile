# syntax=docker/dockerfile:1
# Two images of one release, each with the pinned packages of its file in requirements/ and this project:
#
#   operator   what the chart's Deployment runs; without torch or Ray
#   trainer    what Ray's head and workers run
#
# `make images` builds both with docker, podman or buildah.
#
# BASE_IMAGE is any image with Python 3.11 or newer, its venv module and bash. A site's own certificates can be mounted
# over /etc/ssl/certs during the build: uv is told to use them. Nothing that builds is left in an image: uv lives in the
# cache that is mounted while packages are installed, without copies of them, which would be as large as the image.
# Bytecode is compiled then, since the user who runs it may not write there.
#
# The same sources make the same layers, where the builder fixes their times (scripts/images): bytecode is checked by
# hash, and uv's note of when it saw the sources is taken out.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS base
ENV VIRTUAL_ENV=/opt/tensafe \
    PATH=/opt/tensafe/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/home/tensafe \
    PYTHONUNBUFFERED=1 \
    UV_SYSTEM_CERTS=1 \
    UV_NO_CACHE=1 \
    UV_COMPILE_BYTECODE=1 \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH
# KubeRay starts its processes through /bin/bash; the user has a home, where Ray and Hugging Face keep their caches.
RUN echo 'tensafe:x:1000:1000::/home/tensafe:/bin/bash' >> /etc/passwd && \
    echo 'tensafe:x:1000:' >> /etc/group && \
    install -d -o 1000 -g 1000 /home/tensafe && \
    python3 -m venv --without-pip "$VIRTUAL_ENV"
WORKDIR /home/tensafe

# Packages first, the project after them: a change of the code then rebuilds only the last layer. One of README.md
# rebuilds nothing: the package is to have one, and in an image nobody reads it.
FROM base AS operator
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
    python -m tensafe_operator --help > /dev/null
LABEL org.opencontainers.image.title="TenSafe operator" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 1000:1000
CMD ["python", "-m", "tensafe_operator"]

# CUDA's libraries are half of the image, and change with torch alone: with a layer of their own they are pulled, and
# room is made for them, apart from the rest.
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
