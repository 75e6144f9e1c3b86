//go:build !linux || !cgo

package provider

import (
	"context"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// This build has IWARP alone. The functions are documented where they do something.

// HasDevices returns false.
func HasDevices() bool { return false }

// Devices returns [rdmacm.ErrNotBuilt].
func Devices() ([]Device, error) { return nil, rdmacm.ErrNotBuilt }

// DeviceTo returns [rdmacm.ErrNotBuilt].
func DeviceTo(context.Context, string) (string, error) { return "", rdmacm.ErrNotBuilt }

// DeviceAt returns [rdmacm.ErrNotBuilt].
func DeviceAt(context.Context, string) (string, error) { return "", rdmacm.ErrNotBuilt }

// CheckServing returns nil: there is no listener to check.
func CheckServing(context.Context, string) error { return nil }
