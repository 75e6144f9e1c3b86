// Package headers contains a C file that checks for rdma-core's headers, so that a build without them fails with a
// message that names the package to install. Package cgo depends on it, so it is built first.
package headers
