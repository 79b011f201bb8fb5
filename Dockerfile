FROM golang:1.26 AS build
WORKDIR /src
# The modules change less often than the code: a layer of their own.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/limiter ./cmd/alerter \
 && mkdir /data

# No shell and no package manager; certificates of the public authorities are in it, time zones in the binary.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/limiter /out/alerter /
# A volume takes over the owner of the folder it is mounted on.
COPY --from=build --chown=65532:65532 /data /data
ENV DATA_DIR=/data HTTP_ADDR=0.0.0.0:8080
VOLUME /data
# By number, so that a cluster which forbids root can tell that it is not.
USER 65532:65532
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["/limiter", "healthcheck"]
# For alerts: --entrypoint /alerter, with the same health check.
ENTRYPOINT ["/limiter"]
