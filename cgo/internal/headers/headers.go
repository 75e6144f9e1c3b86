//go:build linux && cgo

package headers

import "C" // so that headers.c is compiled
