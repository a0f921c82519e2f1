# The operator. From the repository root:  docker build -t specserver/operator:0.1.0 .
#
# A file with pip's settings and one with certificates may be passed as build secrets (`--secret id=pip,src=… --secret id=ca,src=…`);
# they are there while a step runs and in no layer.
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm

# Our own wheel. A stage of its own, so that the build backend is in no image.
FROM ${PYTHON} AS wheel
COPY images/wheel-requirements.txt /build/
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/pip \
    PIP_CONFIG_FILE=/run/secrets/pip pip install --no-deps --require-hashes -r /build/wheel-requirements.txt
COPY pyproject.toml README.md /build/
COPY operator /build/operator
RUN pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /dist /build

FROM ${PYTHON}
LABEL org.opencontainers.image.title="SpecServer operator" \
      org.opencontainers.image.licenses="Apache-2.0"
# The root file system is read-only at run time: all bytecode is compiled here, the standard library's too.
RUN python -m venv --without-pip /opt/specserver \
 && python -m compileall -q -x '/(test|tests|idlelib|lib2to3)/' "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY requirements/operator.txt /opt/specserver/requirements.txt
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/pip \
    PIP_CONFIG_FILE=/run/secrets/pip pip --python /opt/specserver/bin/python install \
        --no-deps --require-hashes --only-binary :all: --compile -r /opt/specserver/requirements.txt
# Last, because it changes most. COPY and not a mount from the stage: builders differ in whether a mount's content counts for
# their cache, and one that doesn't would install yesterday's wheel.
COPY --from=wheel /dist /opt/specserver/dist
RUN pip --python /opt/specserver/bin/python install --no-deps --no-index --compile /opt/specserver/dist/*.whl
# HOME: the Kubernetes client asks for one as soon as it is imported, and the user below has no entry in /etc/passwd.
ENV PATH=/opt/specserver/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it isn't root.
USER 65532:65532
ENTRYPOINT ["python", "-m", "specserver"]
