//go:build !linux

package main

// Without the emulator no system calls are counted.
var (
	besides      map[int]bool   // immutable
	syscallNames map[int]string // immutable
)
