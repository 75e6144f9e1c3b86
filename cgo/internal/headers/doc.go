// Package headers holds a C file that looks for rdma-core's headers, so that a
// build without them fails with a sentence that names the package to install.
// Package cgo depends on it: it is built first.
package headers
