package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// WriteBW runs perftest's ib_write_bw with both ends on this machine, connected by librdmacm,
// on the device with the given address: RDMA Writes of size bytes, by default 128 outstanding.
func WriteBW(host string, size int) Workload {
	return Workload{
		Name:  fmt.Sprintf("ib_write_bw-R/host=%s", host),
		Bytes: size,
		Setup: func() (*Instance, error) {
			if _, err := exec.LookPath("ib_write_bw"); err != nil {
				return nil, fmt.Errorf("%w (it is in the package perftest)", err)
			}
			return &Instance{
				Batch: func(n int) (time.Duration, error) { return writeBW(host, size, n) },
				Close: func() error { return nil },
			}, nil
		},
	}
}

// The client retries until the server listens, for which there is no event.
const (
	writeBWPort  = "18620"
	writeBWTries = 50
	writeBWPause = 20 * time.Millisecond
)

// writeBW returns the time for n Writes, scaled from at least minIterations.
func writeBW(host string, size, n int) (time.Duration, error) {
	args := []string{"-R", "-p", writeBWPort, "-s", strconv.Itoa(size), "-n", strconv.Itoa(max(n, minIterations)), "--output=bandwidth"}
	server := exec.Command("ib_write_bw", args...)
	dieWithParent(server)
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer server.Wait()
	defer server.Process.Kill()
	var out []byte
	var err error
	for range writeBWTries {
		out, err = program(ProgramLimit, "ib_write_bw", append(args, host)...)
		if err == nil || errors.As(err, new(*limited.TimeError)) {
			break
		}
		time.Sleep(writeBWPause)
	}
	if err != nil {
		return 0, err
	}
	// The number, in units of 2^20 bytes a second, is the last word.
	words := strings.Fields(string(out))
	if len(words) == 0 {
		return 0, fmt.Errorf("ib_write_bw printed nothing")
	}
	rate, err := strconv.ParseFloat(words[len(words)-1], 64)
	if err != nil || rate <= 0 {
		return 0, fmt.Errorf("ib_write_bw printed %q", out)
	}
	return time.Duration(float64(n) * float64(size) / (rate * (1 << 20)) * float64(time.Second)), nil
}
