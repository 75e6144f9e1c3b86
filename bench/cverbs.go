package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// CVerbs runs one of the C programs in bench/cverbs, on the device with the given address.
// command has its name and options, such as "pingpong -m event".
func CVerbs(dir, command, host string, size int) Workload {
	return cVerbs(dir, command, host, size, ProgramLimit)
}

// Extended is the C program extended in Go: lists of that many Sends and their completions, with the extended API of
// package ibv, on the device with the given address.
func Extended(host string, list int) Workload {
	return Workload{
		Name:  fmt.Sprintf("ibv/extended/list=%d/host=%s", list, host),
		Setup: func() (*Instance, error) { return extendedQueues(host, list) },
	}
}

func cVerbs(dir, command, host string, size int, limit time.Duration) Workload {
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
					out, err := program(limit, path, append(args[1:], "-n", strconv.Itoa(max(n, minIterations)), host)...)
					if err != nil {
						return 0, err
					}
					var report struct {
						PerOp float64 `json:"ns_per_op"`
					}
					if err := json.Unmarshal(out, &report); err != nil {
						return 0, &ProgramError{command, err, limited.Result{Stdout: out}}
					}
					return time.Duration(report.PerOp * float64(n)), nil
				},
				Close: func() error { return nil },
			}, nil
		},
	}
}

// ProgramLimit limits one run of an external program of a workload, which usually takes some tenths of a second. A
// program that takes longer, or prints more than 1 MiB, is killed, and the call fails with a [ProgramError].
const ProgramLimit = time.Minute

// A ProgramError is a failed run of an external program.
type ProgramError struct {
	Command string
	Err     error
	Output  limited.Result // everything that it printed
}

func (e *ProgramError) Error() string {
	text := fmt.Sprintf("%s: %v", e.Command, e.Err)
	if said := e.Output.Said(); said != "" {
		text += ": " + said
	}
	return text
}

// Unwrap returns Err.
func (e *ProgramError) Unwrap() error { return e.Err }

// program runs a program and returns its output.
func program(limit time.Duration, name string, args ...string) ([]byte, error) {
	r, err := (&limited.Program{Cmd: exec.Command(name, args...), Limit: limit}).Run(context.Background())
	if err != nil {
		return nil, &ProgramError{strings.Join(append([]string{filepath.Base(name)}, args...), " "), err, r}
	}
	return r.Stdout, nil
}

// minIterations is the minimum of the C programs. For fewer iterations the time is scaled.
const minIterations = 10
