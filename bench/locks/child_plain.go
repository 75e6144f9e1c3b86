//go:build !measuredlocks

package main

import (
	"errors"
	"io"
)

// child fails: this program has the usual package sync.
func child(io.Writer) error { return errors.New("this program does not measure its locks") }
