//go:build !linux

package serving

import (
	"errors"
	"os"
)

// accepts fails: serve does not run on this system.
func accepts(*os.File) error { return errors.ErrUnsupported }
