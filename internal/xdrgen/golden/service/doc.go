// Package service is what xdrgen makes of programs: clients, servers and bindings. Its tests run
// them over the software adapter and over TCP.
package service

//go:generate go run ../../../../cmd/xdrgen store.x
