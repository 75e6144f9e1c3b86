//go:build linux && cgo

/*
 * Checked only where the headers would be without pkg-config; an rdma-core in
 * another prefix is found by PKG_CONFIG_PATH, and then this only warns.
 */
#if !__has_include(<infiniband/verbs.h>) || !__has_include(<rdma/rdma_cma.h>)
#warning "rdma-core's headers are missing. Install libibverbs-dev, librdmacm-dev and pkg-config (Debian, Ubuntu), rdma-core-devel and pkgconf (Fedora, RHEL, openSUSE) or rdma-core-dev and pkgconf (Alpine), or build with CGO_ENABLED=0 to have the iwarp provider alone."
#endif
