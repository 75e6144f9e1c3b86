// Package rpcbindtest runs tests with the real rpcbind, on Linux. The daemon needs port 111
// and a socket in /run, so it runs in its own network and mount namespaces, separated from an
// rpcbind of the host.
package rpcbindtest
