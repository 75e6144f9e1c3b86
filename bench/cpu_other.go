//go:build !unix

package bench

import "time"

// ProcessorTime returns 0, because the time is unknown on this system.
func ProcessorTime() time.Duration { return 0 }
