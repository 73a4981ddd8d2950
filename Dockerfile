# syntax=docker/dockerfile:1
# Targets: cpu (the default), cuda. `docker build --target cpu --tag headrace:cpu .`
# The image that everything is built on; give one with a digest to build the same again:
#   --build-arg PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# An address of PyTorch's CPU builds keeps several GB of CUDA libraries out of the target cpu; see docs/deployment.md.
ARG PIP_EXTRA_INDEX_URL=""
ARG TORCH="torch>=2.6,<2.14"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python -m venv /opt/headrace
# PyTorch in a layer of its own: by far the largest, and it changes least.
RUN --mount=type=cache,target=/root/.cache/pip \
    PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL}" /opt/headrace/bin/pip install "${TORCH}"
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY offload offload
COPY scheduler scheduler
COPY engine engine
COPY loadgen loadgen
COPY server server
RUN --mount=type=cache,target=/root/.cache/pip \
    PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL}" /opt/headrace/bin/pip install .

FROM ${PYTHON_IMAGE} AS runtime
# The native kernels are compiled at the first start, for the compiler and the machine, and kept in the cache.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# Whatever user it is run as, in group 0: what it writes is below these two.
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir /home/headrace headrace \
    && install --directory --owner=10001 --group=0 --mode=2770 /home/headrace /cache
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    HOME=/home/headrace \
    USER=headrace \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HEADRACE_CACHE=/cache/headrace \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor \
    TRITON_CACHE_DIR=/cache/triton \
    HEADRACE_HOST=0.0.0.0 \
    HEADRACE_PORT=8000
WORKDIR /home/headrace
VOLUME /cache
EXPOSE 8000
USER 10001:0
STOPSIGNAL SIGTERM
# A first start fetches and profiles the model: minutes. Docker alone marks an unhealthy container, it starts none again.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['HEADRACE_PORT'] + '/readyz', timeout=4)"]
ENTRYPOINT ["headrace"]
CMD ["serve"]
LABEL org.opencontainers.image.title="Headrace" \
      org.opencontainers.image.description="An OpenAI-compatible LLM server in which every request has a latency target, by class." \
      org.opencontainers.image.licenses="Apache-2.0"

# PyTorch as the plain index has it brings its CUDA libraries; the driver comes with the container toolkit.
FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM runtime AS cpu
