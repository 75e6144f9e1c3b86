// Package service tests the output of xdrgen for a program, store.x: its client, server and binding, over the software
// adapter and over TCP.
package service
