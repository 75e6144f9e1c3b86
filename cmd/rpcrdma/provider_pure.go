//go:build !linux || !cgo

package main

import (
	"context"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// This build has the provider iwarp alone.

func hasDevices() bool { return false }

func listDevices() ([]deviceJSON, error) { return nil, rdmacm.ErrNotBuilt }

func deviceTo(context.Context, string) (string, error) { return "", rdmacm.ErrNotBuilt }

func deviceAt(context.Context, string) (string, error) { return "", rdmacm.ErrNotBuilt }

func noAnswer(error) bool { return false }

func checkServing(context.Context, string) error { return nil }

func explainRDMA(error) (string, bool) { return "", false }
