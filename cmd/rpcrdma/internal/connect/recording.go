package connect

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/capture"
)

// recording is the capture file of a command.
type recording struct {
	file    string // empty: none
	snap    int
	size    sizeValue
	files   int
	framing choice

	w *capture.Writer // set by the first provider
}

// add adds the flags, and arranges for the file to be closed after the command has run.
func (r *recording) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&r.file, "capture", "", "record what crosses the wire to `FILE`, for Wireshark and 'rpcrdma decode', with all data")
	flags.IntVar(&r.snap, "capture-snap", 0, "record only the first `BYTES` of each packet's data")
	flags.Var(&r.size, "capture-size", "record up to `SIZE`, such as 100M, to a file")
	flags.IntVar(&r.files, "capture-files", 1, "keep the last `N` files of that size")
	r.framing = choice{"iwarp", []string{"iwarp", "roce"}}
	flags.Var(&r.framing, "capture-as", "write packets as iWARP, which Wireshark understands best, or RoCE v2")
	cli.CompleteFile(cmd, "capture")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		switch {
		case r.file == "" && (r.snap != 0 || r.size != 0 || r.files != 1 || cmd.Flags().Changed("capture-as")):
			err = errors.New("--capture-snap, --capture-size, --capture-files and --capture-as are for --capture")
		case r.snap < 0:
			err = fmt.Errorf("--capture-snap is %d, want 1 or more", r.snap)
		case r.files < 1:
			err = fmt.Errorf("--capture-files is %d, want 1 or more", r.files)
		case r.files > 1 && r.size == 0:
			err = errors.New("--capture-files needs --capture-size")
		}
		if err != nil {
			return cli.Usage(cmd, err)
		}
		err = run(cmd, args)
		if r.w == nil {
			return err
		}
		closed := r.w.Close()
		if s := r.w.Stats(); s.Dropped > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "rpcrdma: %s: %d messages and operations were not recorded: the disk was too slow, or the file full\n", r.file, s.Dropped)
		}
		if err == nil && closed != nil {
			err = closed
		}
		return err
	}
}

// wrap returns p. If recording is enabled, its connections are recorded.
func (r *recording) wrap(p fabric.Provider) (fabric.Provider, error) {
	if r.file == "" {
		return p, nil
	}
	if r.w == nil {
		cfg := capture.Config{SnapLen: r.snap, MaxSize: int64(r.size), Files: r.files}
		if r.framing.Value == "roce" {
			cfg.Framing = capture.RoCE
		}
		w, err := capture.Create(r.file, &cfg)
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("--capture: %w", err)
		}
		r.w = w
	}
	return r.w.Provider(p), nil
}

// Listener returns l. If wrap has begun a recording, its connections are recorded.
func (r *recording) Listener(l net.Listener) net.Listener {
	if r.w == nil {
		return l
	}
	return r.w.Listener(l)
}

// sizeValue is a flag value for a number of bytes: 1000000, 100M, 2G.
type sizeValue int64

// NewSize returns a flag value for a number of bytes.
func NewSize(n *int64) pflag.Value { return (*sizeValue)(n) }

func (v *sizeValue) String() string { return strconv.FormatInt(int64(*v), 10) }

// Type returns the name of the value in the help.
func (v *sizeValue) Type() string { return "SIZE" }

func (v *sizeValue) Set(s string) error {
	unit := int64(1)
	for i, suffix := range []string{"K", "M", "G", "T"} {
		if before, ok := strings.CutSuffix(strings.ToUpper(s), suffix); ok {
			s, unit = before, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/unit {
		return errors.New("want a number of bytes, optionally followed by K, M or G")
	}
	*v = sizeValue(n * unit)
	return nil
}
