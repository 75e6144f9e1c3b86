# The images of the project; docs/install.md explains their use.
#
#   runtime   the command and rdma-core's libraries, nothing else: the default
#   demo      a client with a shell, which demonstrates a server
#   bench     perftest, the C baselines and the benchmark suite
#   vm        a virtual machine with RDMA devices, for hosts whose kernel has none
#
#   docker build --target bench -t rpcrdma-bench .

ARG GO_IMAGE=golang:1.26-bookworm
ARG DEBIAN_IMAGE=debian:bookworm-slim

# ---- compiled programs
FROM ${GO_IMAGE} AS build
RUN apt-get update \
	&& apt-get install -y --no-install-recommends gcc libc6-dev libibverbs-dev librdmacm-dev make pkg-config \
	&& rm -rf /var/lib/apt/lists/*
WORKDIR /src
# Each module separately: the workspace would require the developers' tools, too.
ENV GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=1
# Modules first: they change less often than the sources.
COPY go.mod go.sum ./
COPY cmd/rpcrdma/go.mod cmd/rpcrdma/go.sum cmd/rpcrdma/
COPY grpcrdma/go.mod grpcrdma/go.sum grpcrdma/
COPY rpc/promrpc/go.mod rpc/promrpc/go.sum rpc/promrpc/
COPY rpc/rpcsec/krb5/go.mod rpc/rpcsec/krb5/go.sum rpc/rpcsec/krb5/
COPY bench/go.mod bench/go.sum bench/
# What the command requires of this repository is replaced by its directories.
RUN cp cmd/rpcrdma/go.mod /command.mod \
	&& cp cmd/rpcrdma/go.sum /command.sum \
	&& go mod edit -replace=github.com/rpcrdma/rpcrdma=../.. \
		-replace=github.com/rpcrdma/rpcrdma/grpcrdma=../../grpcrdma \
		-replace=github.com/rpcrdma/rpcrdma/rpc/promrpc=../../rpc/promrpc \
		-replace=github.com/rpcrdma/rpcrdma/rpc/rpcsec/krb5=../../rpc/rpcsec/krb5 /command.mod \
	&& go -C cmd/rpcrdma mod download -modfile=/command.mod \
	&& go -C bench mod download
COPY . .
RUN go -C cmd/rpcrdma build -modfile=/command.mod -trimpath -ldflags='-s -w' -o /out/rpcrdma .

FROM build AS build-bench
RUN go -C bench build -trimpath -ldflags='-s -w' -o /out/rpcrdma-ratio ./ratio \
	&& go -C bench test -c -trimpath -o /out/rpcrdma-bench . \
	&& make -C bench/cverbs

FROM build AS build-vm
RUN CGO_ENABLED=0 go -C tools build -trimpath -ldflags='-s -w' -o /out/vm ./vm

# ---- the files of the runtime image
FROM ${DEBIAN_IMAGE} AS files
COPY scripts/container-files /
# The root file system has no package manager: the packages that the command links or
# loads are unpacked, and listed where scanners expect them.
RUN apt-get update \
	&& /container-files /image libibverbs1 librdmacm1 ibverbs-providers libnl-3-200 libnl-route-3-200 libc6 libgcc-s1 \
	&& rm -rf /var/lib/apt/lists/*

# ---- Debian with RDMA tools, for the images that have a shell
FROM ${DEBIAN_IMAGE} AS tools
RUN apt-get update \
	&& apt-get install -y --no-install-recommends ibverbs-providers ibverbs-utils iproute2 librdmacm1 perftest rdmacm-utils \
	&& rm -rf /var/lib/apt/lists/* \
	&& useradd --uid 65532 --user-group --create-home --home-dir /srv/files --shell /usr/sbin/nologin rpcrdma
COPY --from=build /out/rpcrdma /usr/bin/

FROM tools AS demo
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rpcrdma-demo" \
	org.opencontainers.image.description="A client that shows a server of rpcrdma at work" \
	org.opencontainers.image.licenses="Apache-2.0" \
	org.opencontainers.image.version="${VERSION}" \
	org.opencontainers.image.revision="${REVISION}"
COPY scripts/container-demo /usr/bin/
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/container-demo"]

FROM tools AS bench
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rpcrdma-bench" \
	org.opencontainers.image.description="Benchmarks of rpcrdma: perftest, C baselines, the suite" \
	org.opencontainers.image.licenses="Apache-2.0" \
	org.opencontainers.image.version="${VERSION}" \
	org.opencontainers.image.revision="${REVISION}"
COPY --from=build-bench /out/rpcrdma-ratio /out/rpcrdma-bench /usr/bin/
COPY --from=build-bench /src/bench/cverbs/bin /usr/lib/rpcrdma/cverbs
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/rpcrdma-ratio", "-cverbs", "/usr/lib/rpcrdma/cverbs"]

FROM bench AS vm
LABEL org.opencontainers.image.title="rpcrdma-vm" \
	org.opencontainers.image.description="A virtual machine with RDMA devices that runs rpcrdma"
# root owns /dev/kvm on most hosts. The container needs none of its capabilities.
# hadolint ignore=DL3002
USER root
RUN apt-get update \
	&& apt-get install -y --no-install-recommends busybox-static gcc kmod libc6-dev make qemu-system-x86 xz-utils \
	&& rm -rf /var/lib/apt/lists/*
COPY --from=build-vm /out/vm /usr/lib/rpcrdma/
COPY scripts/rdma /usr/lib/rpcrdma/
COPY scripts/guest /usr/lib/rpcrdma/guest
ENV RPCRDMA_VM_CACHE=/var/cache/rpcrdma-vm
VOLUME /var/cache/rpcrdma-vm
ENTRYPOINT ["/usr/lib/rpcrdma/vm"]
CMD ["--dev", "rxe", "--", "rpcrdma", "demo", "--provider", "rdma", "--addr", "10.9.9.1:0", "--from", "/usr/lib/rpcrdma"]

# ---- the default: no shell, no package manager, not root
FROM scratch AS runtime
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rpcrdma" \
	org.opencontainers.image.description="ONC RPC over RDMA from the command line: serves a directory, moves files" \
	org.opencontainers.image.licenses="Apache-2.0" \
	org.opencontainers.image.version="${VERSION}" \
	org.opencontainers.image.revision="${REVISION}"
COPY --from=files /image /
COPY --from=build /out/rpcrdma /usr/bin/
USER 65532:65532
WORKDIR /srv/files
EXPOSE 20049/tcp
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s \
	CMD ["/usr/bin/rpcrdma", "ping", "-c", "1", "--timeout", "4s", "127.0.0.1:20049"]
ENTRYPOINT ["/usr/bin/rpcrdma"]
CMD ["serve", "--addr", ":20049", "--dir", "/srv/files"]
