# syntax=docker/dockerfile:1
# The trainer's image: the pinned packages of requirements/trainer.txt and this project, for workers and Ray's head.
#
#   docker build --target trainer --tag tensafe-trainer .
#
# BASE_IMAGE is any image with Python 3.11 or newer, its venv module and bash. A site's own certificates can be mounted
# over /etc/ssl/certs during the build: uv is told to use them.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS trainer
ENV UV_SYSTEM_CERTS=1 \
    UV_LINK_MODE=copy \
    VIRTUAL_ENV=/opt/tensafe \
    PATH=/opt/tensafe/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1

# Packages first, the project after them: a change of the code then rebuilds only the last layer.
COPY requirements/trainer.txt /tmp/requirements.txt
RUN --mount=type=cache,target=/root/.cache \
    python3 -m venv "$VIRTUAL_ENV" && \
    pip install --quiet --disable-pip-version-check uv && \
    uv pip install --requirement /tmp/requirements.txt && \
    rm /tmp/requirements.txt

COPY pyproject.toml README.md LICENSE /src/
COPY crds /src/crds
COPY trainer_image /src/trainer_image
RUN --mount=type=cache,target=/root/.cache \
    uv pip install --no-deps /src && \
    rm -r /src

# KubeRay starts its processes through /bin/bash; the user has a home, where Ray and Hugging Face keep their caches.
RUN mkdir -p /home/tensafe && \
    echo 'tensafe:x:1000:1000::/home/tensafe:/bin/bash' >> /etc/passwd && \
    echo 'tensafe:x:1000:' >> /etc/group && \
    chown 1000:1000 /home/tensafe && \
    ray --version && tensafe --help > /dev/null
USER 1000:1000
ENV HOME=/home/tensafe
WORKDIR /home/tensafe
CMD ["tensafe", "--help"]
