//go:build !linux

package bench

import "errors"

// RingPing is available only on Linux.
func RingPing(int) Workload { return unsupported() }

// Memmove is available only on Linux.
func Memmove(int) Workload { return unsupported() }

func unsupported() Workload {
	return Workload{Name: "unsupported", Setup: func() (*Instance, error) { return nil, errors.ErrUnsupported }}
}

// Shmipc is available only on Linux.
func Shmipc(int) Workload { return unsupported() }

func servePing(int) (*far, error)   { return nil, errors.ErrUnsupported }
func serveShmipc(int) (*far, error) { return nil, errors.ErrUnsupported }
