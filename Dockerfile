# Built with a Redis inside, which `redis.url: embedded` (the default without a file) runs on the volume /data:
#
#   docker build -t punctual .
#   docker run --rm -p 8080:8080 -v punctual-data:/data \
#     -v ./punctual.yaml:/etc/punctual/punctual.yaml:ro -e PUNCTUAL__SERVER__AUTH__TOKENS=change-me-16-or-more \
#     punctual serve -c /etc/punctual/punctual.yaml
#
# It listens on every address of the container unless the file says otherwise, and punctual refuses that without
# tokens: name them in the environment (with commas between them) or under server.auth in the file. A file without
# redis.url means the Redis at 127.0.0.1:6379, which is not in the container: write `embedded` or your own. Stop it
# with `docker stop -t 15`: messages that are being sent may take up to shutdown_timeout, 10 s, to finish.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make pkg-config libssl-dev zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY Cargo.toml Cargo.lock README.md ./
COPY src src
COPY migrate migrate
COPY tests/model tests/model
COPY lua lua
COPY config config
# For `punctual --version`: --build-arg PUNCTUAL_COMMIT="$(git rev-parse --short=12 HEAD)"
ARG PUNCTUAL_COMMIT
RUN cargo build --locked --profile dist --bin punctual --features otlp

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 redis-server zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 punctual \
    && useradd --system --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin punctual \
    && install -d -o 10001 -g 10001 -m 700 /data
COPY --from=build /build/target/dist/punctual /usr/local/bin/punctual
COPY LICENSE /usr/share/doc/punctual/LICENSE

# Defaults: a file wins over them.
ENV PUNCTUAL_DEFAULT__SERVER__LISTEN=0.0.0.0:8080 \
    PUNCTUAL_DEFAULT__REDIS__DATA_DIR=/data
# Numeric: Kubernetes cannot tell of a name whether it is root (runAsNonRoot).
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
# Whether the process lives: a Redis that is down is no reason to restart it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["punctual", "health", "--live", "--url", "http://127.0.0.1:8080"]
ENTRYPOINT ["punctual"]
CMD ["serve"]
