# memctl with all its drivers, for an unprivileged user:
#   docker build -t memctl .
#   docker run --rm -v "$PWD:/data" memctl inspect agents.db
FROM python:3.12-slim AS build
WORKDIR /source
RUN python -m venv --without-pip /opt/memctl
COPY pyproject.toml README.md LICENSE ./
COPY memctl memctl
COPY man man
COPY completions completions
RUN pip --python /opt/memctl/bin/python install --no-cache-dir '.[all]'

FROM python:3.12-slim
COPY --from=build /opt/memctl /opt/memctl
ENV PATH=/opt/memctl/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CONFIG_HOME=/config \
    XDG_STATE_HOME=/state
# The state folder holds what undo needs: mount a volume there to keep it.
RUN groupadd --gid 10001 memctl \
    && useradd --uid 10001 --gid memctl --no-create-home --shell /usr/sbin/nologin memctl \
    && install -d -o memctl -g memctl -m 0700 /config /state \
    && install -d -o memctl -g memctl /data
USER 10001:10001
WORKDIR /data
VOLUME ["/state"]
ENTRYPOINT ["memctl"]
