package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CVerbs is one of the C programs in bench/cverbs, on the device that the address
// belongs to. Its name and options are those of its command line, such as
// "pingpong -m event".
func CVerbs(dir, command, host string, size int) Workload {
	args := strings.Fields(command)
	path := filepath.Join(dir, args[0])
	return Workload{
		Name:  fmt.Sprintf("C/%s/host=%s", strings.ReplaceAll(command, " ", ""), host),
		Bytes: size,
		Setup: func() (*Instance, error) {
			if _, err := exec.LookPath(path); err != nil {
				return nil, fmt.Errorf("%w (make -C bench/cverbs builds it)", err)
			}
			return &Instance{
				Batch: func(n int) (time.Duration, error) {
					out, err := exec.Command(path, append(args[1:], "-n", strconv.Itoa(max(n, minIterations)), host)...).Output()
					var exit *exec.ExitError
					if errors.As(err, &exit) {
						err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
					}
					if err != nil {
						return 0, err
					}
					var report struct {
						PerOp float64 `json:"ns_per_op"`
					}
					if err := json.Unmarshal(out, &report); err != nil {
						return 0, fmt.Errorf("%s: %w", command, err)
					}
					return time.Duration(report.PerOp * float64(n)), nil
				},
				Close: func() error { return nil },
			}, nil
		},
	}
}

// minIterations is the least that the C programs do. Who asks for fewer is told what so
// many take on the average.
const minIterations = 10
