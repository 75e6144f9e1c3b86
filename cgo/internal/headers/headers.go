//go:build linux && cgo

package headers

import "C" // makes the build compile headers.c
