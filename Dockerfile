FROM python:3.11-slim-bookworm AS build

# Debian keeps only the newest revision of a package, so a pinned one would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY . .
# The cache mount keeps the compiled llama.cpp between builds, by the hash of its inputs.
RUN --mount=type=cache,target=/root/.cache scripts/image_build /opt/corral


FROM python:3.11-slim-bookworm

# libgomp1: llama.cpp's threads.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 corral \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin corral \
    && install -d -o corral -g corral /var/lib/corral

COPY --from=build /opt/corral /opt/corral

ENV PATH=/opt/corral/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CORRAL_HOME=/var/lib/corral \
    CORRAL_HOST=0.0.0.0

VOLUME ["/var/lib/corral"]
EXPOSE 8080
# The number, so that Kubernetes can tell that it is not root.
USER 10001:10001

HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('CORRAL_PORT', '8080') + '/health', timeout=4)"]

ENTRYPOINT ["corral"]
CMD ["serve"]
