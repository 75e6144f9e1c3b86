// Package rpcbindtest runs tests beside the real rpcbind, on Linux. The daemon wants
// port 111 and a socket in /run, so it gets a network and a file system of its own:
// whatever the machine has there stays as it is, and nobody else can reach the one
// under test.
package rpcbindtest
