//go:build !unix

package bench

import "time"

// ProcessorTime is unknown here.
func ProcessorTime() time.Duration { return 0 }
