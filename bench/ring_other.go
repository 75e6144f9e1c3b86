//go:build !linux

package bench

import "errors"

// RingPing is for Linux.
func RingPing(int) Workload { return unsupported() }

// Memmove is for Linux.
func Memmove(int) Workload { return unsupported() }

func unsupported() Workload {
	return Workload{Name: "unsupported", Setup: func() (*Instance, error) { return nil, errors.ErrUnsupported }}
}

// Shmipc is for Linux.
func Shmipc(int) Workload { return unsupported() }

func servePing(int) (*far, error)   { return nil, errors.ErrUnsupported }
func serveShmipc(int) (*far, error) { return nil, errors.ErrUnsupported }
