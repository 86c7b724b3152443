# Base images have a tag for the release and a digest for the bytes: change both together.
# One image for the API, the workers and the command line: `docker run batchwright worker`, `api`, `migrate` ...
#
# For both platforms, and byte for byte the same from the same commit:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" \
#     --output type=image,name=batchwright,rewrite-timestamp=true .
# Every locked package has a wheel for both. `docker buildx imagetools inspect IMAGE` lists a base image's platforms.
FROM ghcr.io/astral-sh/uv:0.13.0@sha256:cdc6093146eb3ff6a40107b38f008b789e050e77ad87865e381d9917da55a168 AS uv

FROM python:3.11.15-slim-trixie@sha256:db3ff2e1800a8581e2c48a27c3995339d47bdf046da21c7627accd3d51053a93 AS build
COPY --from=uv /uv /usr/local/bin/uv
ARG SOURCE_DATE_EPOCH
# Files of byte code with a hash instead of a time, which nothing checks again: the image does not change.
ENV PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/opt/batchwright
WORKDIR /src
# A separate layer, because the libraries change rarely.
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-default-groups --no-install-project
COPY README.md LICENSE ./
COPY activities ./activities
COPY api ./api
COPY batchwright ./batchwright
COPY simulator ./simulator
COPY starter ./starter
COPY worker ./worker
COPY workflows ./workflows
# uv records when this folder changed, which is different in each build.
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-default-groups --no-editable && \
    sed -i '/uv_cache.json/d' /opt/batchwright/lib/python*/site-packages/batchwright-*.dist-info/RECORD && \
    rm /opt/batchwright/lib/python*/site-packages/batchwright-*.dist-info/uv_cache.json

FROM python:3.11.15-slim-trixie@sha256:db3ff2e1800a8581e2c48a27c3995339d47bdf046da21c7627accd3d51053a93
LABEL org.opencontainers.image.title="batchwright" \
      org.opencontainers.image.description="OpenAI-compatible batches, each one a durable Temporal workflow" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/batchwright /opt/batchwright
COPY deploy/image/healthcheck.py /opt/batchwright/healthcheck.py
# The only path that is written to; the root file system may be read-only.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /var/spool/batchwright
# The API listens beyond loopback only with BATCHWRIGHT_AUTH=api_key or trusted_header. Set it yourself.
ENV PATH=/opt/batchwright/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/spool/batchwright \
    TMPDIR=/var/spool/batchwright \
    BATCHWRIGHT_SPOOL_DIR=/var/spool/batchwright \
    BATCHWRIGHT_API_HOST=0.0.0.0 \
    BATCHWRIGHT_API_PORT=8000 \
    BATCHWRIGHT_METRICS_HOST=0.0.0.0 \
    BATCHWRIGHT_METRICS_PORT=9090 \
    BATCHWRIGHT_LOG_FORMAT=json
# A number, so that Kubernetes can verify that the user is not root.
USER 10001:10001
WORKDIR /var/spool/batchwright
VOLUME ["/var/spool/batchwright"]
EXPOSE 8000 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "/opt/batchwright/healthcheck.py"]
ENTRYPOINT ["batchwright"]
CMD ["--help"]
