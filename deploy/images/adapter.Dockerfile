# The adapter without PyTorch. `make images` downloads the locked packages to build/wheels and builds this image; the
# build needs no network. Both bases need the same Python at the same path, because the environment is copied.
ARG BUILDER=docker.io/library/python:3.11-bookworm
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BUILDER} AS builder
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY protos protos
COPY clients/python clients/python
COPY antiphon_service antiphon_service
COPY ws_adapter ws_adapter
COPY inference_service inference_service
COPY deploy/images /images
# An adapter runs no model: its image has neither the worker's code nor the weights.
RUN --mount=type=bind,source=build/wheels,target=/wheels \
    /images/install.sh /images/adapter.txt /wheels/adapter && \
    rm -r /opt/antiphon/lib/python3.*/site-packages/inference_service

FROM ${BASE}
COPY --from=builder /opt/antiphon /opt/antiphon
RUN --mount=type=bind,source=deploy/images,target=/images \
    /opt/antiphon/bin/python -B /images/sbom.py antiphon-adapter > /opt/antiphon/sbom.cdx.json
ENV PATH=/opt/antiphon/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ANTIPHON_ADAPTER__HOST=0.0.0.0 \
    ANTIPHON_ADAPTER__ADMIN_PORT=9464
USER 10001:10001
EXPOSE 8006 9464
STOPSIGNAL SIGTERM
# Readiness: the adapter can start a session. `antiphon probe` would occupy a session for each check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-IS", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8006/readyz', timeout=4)"]
ENTRYPOINT ["antiphon", "adapter"]
