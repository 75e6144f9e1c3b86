//go:build linux && cgo

#if !__has_include(<infiniband/verbs.h>) || !__has_include(<rdma/rdma_cma.h>)
#error "no headers of rdma-core: install libibverbs-dev librdmacm-dev pkg-config (Debian, Ubuntu), rdma-core-devel pkgconf (Fedora, RHEL, openSUSE) or rdma-core-dev pkgconf (Alpine); set CGO_CFLAGS=-I... if they are elsewhere; or build with CGO_ENABLED=0 for the iwarp provider alone"
#endif
