# The worker. LOCK=worker-cpu is for the CPU. For CUDA `make images` sets LOCK=worker-cuda, DEVICE=cuda, and as BASE an
# image with a C compiler and Python's headers, which Triton needs at run time.
ARG BUILDER=docker.io/library/python:3.11-bookworm
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BUILDER} AS builder
ARG LOCK=worker-cpu
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY protos protos
COPY clients/python clients/python
COPY antiphon_service antiphon_service
COPY antiphon_training antiphon_training
COPY ws_adapter ws_adapter
COPY inference_service inference_service
COPY deploy/images /images
# The cache directory: weights from a hub, kernels of Triton and torch.compile. Mount a volume here.
RUN --mount=type=bind,source=build/wheels,target=/wheels \
    /images/install.sh "/images/${LOCK}.txt" "/wheels/${LOCK}" && \
    install -d -o 10001 -g 10001 /opt/antiphon/cache

FROM ${BASE}
ARG LOCK=worker-cpu
ARG DEVICE=cpu
COPY --from=builder /opt/antiphon /opt/antiphon
RUN --mount=type=bind,source=deploy/images,target=/images \
    /opt/antiphon/bin/python -B /images/sbom.py "antiphon-${LOCK}" > /opt/antiphon/sbom.cdx.json
ENV PATH=/opt/antiphon/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/opt/antiphon/cache/hub \
    TRITON_CACHE_DIR=/opt/antiphon/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/opt/antiphon/cache/inductor \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    ANTIPHON_WORKER__DEVICE=${DEVICE} \
    ANTIPHON_WORKER__ADMIN_PORT=9465
USER 10001:10001
EXPOSE 50051 9465
STOPSIGNAL SIGTERM
# Readiness: the model is loaded and accepts sessions. A large model takes minutes to load.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "-IS", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9465/readyz', timeout=4)"]
ENTRYPOINT ["antiphon", "worker"]
