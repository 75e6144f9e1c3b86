// Package service tests what xdrgen makes of a program, store.x: its client, server and binding, over
// the software adapter and over TCP.
package service
