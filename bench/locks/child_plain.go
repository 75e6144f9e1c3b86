//go:build !measuredlocks

package main

import (
	"errors"
	"io"
)

// child fails, because this program has the ordinary package sync.
func child(io.Writer) error { return errors.New("this program does not measure its locks") }
