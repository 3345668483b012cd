# Built with a Redis inside, which `redis.url: embedded` (the default without a file) runs on the volume /data:
#
#   docker build -t punctual .
#   docker run --rm -p 8080:8080 -v punctual-data:/data \
#     -v ./punctual.yaml:/etc/punctual.yaml:ro -e PUNCTUAL__SERVER__AUTH__TOKENS=change-me-16-or-more \
#     punctual serve -c /etc/punctual.yaml
#
# It listens on every address of the container, and punctual refuses that without tokens: name them in the
# environment (with commas between them) or under server.auth in the file. A file without redis.url means the
# Redis at 127.0.0.1:6379, which is not in the container: write `embedded` or your own. Stop it with
# `docker stop -t 15`: messages that are being sent may take up to shutdown_timeout, 10 s, to finish.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make pkg-config libssl-dev zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY Cargo.toml Cargo.lock README.md ./
COPY src src
COPY lua lua
COPY config config
RUN cargo build --locked --profile dist --bin punctual

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 redis-server zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin punctual \
    && install -d -o punctual -g punctual -m 700 /data
COPY --from=build /build/target/dist/punctual /usr/local/bin/punctual
COPY LICENSE /usr/share/doc/punctual/LICENSE

ENV PUNCTUAL__SERVER__LISTEN=0.0.0.0:8080 \
    PUNCTUAL__REDIS__DATA_DIR=/data
USER punctual
WORKDIR /data
VOLUME /data
EXPOSE 8080
# livez, not readyz: a Redis that is away is no reason to restart punctual. There is no curl in here.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /livez HTTP/1.0\\r\\n\\r\\n' >&3 && read -r status <&3 && [[ $status == *' 200 '* ]]"]
ENTRYPOINT ["punctual"]
CMD ["serve"]
