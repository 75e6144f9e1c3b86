//go:build !linux

package serving

import (
	"errors"
	"os"
)

// accepts fails: there is no service here that could serve.
func accepts(*os.File) error { return errors.ErrUnsupported }
