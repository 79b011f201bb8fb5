FROM golang:1.26 AS build
WORKDIR /src
# The modules have a layer of their own, because they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/limiter ./cmd/alerter \
 && mkdir /data

# This image has no shell and no package manager, but the certificates of the public authorities. Time zones are in the
# binary.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/limiter /out/alerter /
# A new volume gets the owner of the folder it is mounted on.
COPY --from=build --chown=65532:65532 /data /data
ENV DATA_DIR=/data HTTP_ADDR=0.0.0.0:8080
VOLUME /data
# By number, so that a cluster that forbids root can see that this user is not root.
USER 65532:65532
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["/limiter", "healthcheck"]
# For alerts: --entrypoint /alerter, with the same health check.
ENTRYPOINT ["/limiter"]
