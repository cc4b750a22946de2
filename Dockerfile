# docker build -t calibration-service .                                   NVIDIA, CUDA 12
# docker build --build-arg LOCK=requirements-cuda13.lock -t ... .         NVIDIA, CUDA 13
# docker build --build-arg LOCK=requirements.lock -t ... .                host CPU only
# docker run --gpus all -p 8080:8080 -v calibration:/data -e CALIBRATE_TOKEN=... calibration-service
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
ARG LOCK=requirements-cuda12.lock
# Debian's stable release is the pin: its packages get security updates under the same major version.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/calibration
ENV PATH=/opt/calibration/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements*.lock ./
RUN pip install --require-hashes -r "${LOCK}"
COPY pyproject.toml README.md ./
COPY fitting fitting
COPY kernels kernels
COPY migrations migrations
COPY service service
RUN pip install --no-deps --no-build-isolation .

FROM ${BASE}
# gcc compiles the host CPU's kernels at run time; a GPU's are compiled by NVRTC from the locked packages.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin calibrate \
    && install -d -o calibrate -g calibrate -m 0750 /data
COPY --from=build /opt/calibration /opt/calibration
ENV PATH=/opt/calibration/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CALIBRATE_DATA_DIR=/data \
    MPLCONFIGDIR=/data/matplotlib \
    CUPY_CACHE_DIR=/data/cupy \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["calibrate"]
# Beyond loopback the service wants a token: set CALIBRATE_TOKEN, or it refuses to start and says so.
CMD ["serve", "--host", "0.0.0.0", "--port", "8080", "--calibrate-missing"]
