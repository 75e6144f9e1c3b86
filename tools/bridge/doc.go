// Package bridge tests the bridge of package transport with a third-party TCP server: go-nfs, unchanged.
package bridge
