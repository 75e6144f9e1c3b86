// Package bridge has the tests of the bridge of package transport with a server that others have written for
// TCP: go-nfs, unchanged.
package bridge
