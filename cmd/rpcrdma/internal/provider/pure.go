//go:build !linux || !cgo

package provider

import (
	"context"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// This build has only IWARP. The functions are documented in the other files.

// HasDevices returns false.
func HasDevices() bool { return false }

// Devices returns [rdmacm.ErrNotBuilt].
func Devices() ([]Device, error) { return nil, rdmacm.ErrNotBuilt }

// DeviceTo returns [rdmacm.ErrNotBuilt].
func DeviceTo(context.Context, string) (string, error) { return "", rdmacm.ErrNotBuilt }

// DeviceAt returns [rdmacm.ErrNotBuilt].
func DeviceAt(context.Context, string) (string, error) { return "", rdmacm.ErrNotBuilt }

// CheckServing returns nil, because there is nothing to check.
func CheckServing(context.Context, string) error { return nil }
