//go:build !unix

package measure

import "time"

// processorTime is unknown here: ratios of it are no numbers.
func processorTime() time.Duration { return 0 }
