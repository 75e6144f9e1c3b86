//go:build !unix

package measure

import "time"

// familyTime returns 0, because the times of processes are unknown on this system.
func familyTime() time.Duration { return 0 }
