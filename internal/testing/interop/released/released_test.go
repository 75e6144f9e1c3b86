package released

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// series is where TestRecord writes.
var series = flag.String("record", "", "record the conversations of a `series` of versions, such as v0.2")

// protocols are the versions of RPC-over-RDMA, by what their files are called.
var protocols = map[string]transport.Version{"version1": transport.Version1, "version2": transport.Version2}

// record has today's ends speak to each other.
func record(t *testing.T, s scenario, version transport.Version) []unit {
	t.Helper()
	r, err := newRelay(serve(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(t, r.l.Addr().String(), version)
	if err == nil {
		err = errors.Join(s.run(t.Context(), c), c.Close())
	}
	units, failed := r.stop()
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return units
}

// TestRecord records a new set. One that is there belongs to versions that are out.
func TestRecord(t *testing.T) {
	if *series == "" {
		t.Skip("nothing is to be recorded: there is no flag -record")
	}
	dir := filepath.Join("testdata", *series)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, version := range protocols {
		for _, s := range scenarios {
			title := fmt.Sprintf("%s, RPC-over-RDMA version %d: %s", *series, version, s.name)
			if err := store(filepath.Join(dir, s.name+"."+name), title, record(t, s, version)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// asServer has today's server hear a recorded client.
func asServer(t *testing.T, units []unit) error {
	t.Helper()
	conn, err := net.Dial("tcp", serve(t))
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := newReplay(client, units, conn)
	if err != nil {
		return err
	}
	return r.run()
}

// asClient has today's client hear a recorded server, and looks at what its caller gets.
func asClient(t *testing.T, s scenario, version transport.Version, units []unit) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	played, done := make(chan error, 1), make(chan struct{})
	go func() {
		played <- func() error {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			defer conn.Close()
			r, err := newReplay(server, units, conn)
			if err == nil {
				err = r.run()
			}
			if err == nil {
				<-done // the client has not looked at everything yet
			}
			return err
		}()
	}()
	c, err := dial(t, l.Addr().String(), version)
	if err != nil {
		l.Close()
		return errors.Join(err, <-played)
	}
	err = s.run(t.Context(), c)
	if err != nil {
		c.Close() // for which the other end may wait
	}
	close(done)
	return errors.Join(err, <-played, c.Close())
}

// Every recorded conversation goes on as it did, with either end of today.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.version[12]")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < len(scenarios)*len(protocols) {
		t.Errorf("there are %d recordings", len(files))
	}
	for _, file := range files {
		name, protocol, _ := strings.Cut(filepath.Base(file), ".")
		units, err := fetch(file)
		if err != nil {
			t.Fatal(err)
		}
		var s *scenario
		for i := range scenarios {
			if scenarios[i].name == name {
				s = &scenarios[i]
			}
		}
		if s == nil {
			t.Errorf("%s: the scenario is gone", file)
			continue
		}
		title := filepath.Base(filepath.Dir(file)) + "/" + name + "/" + protocol
		t.Run(title+"/client", func(t *testing.T) {
			if err := asServer(t, units); err != nil {
				t.Error(err)
			}
		})
		t.Run(title+"/server", func(t *testing.T) {
			if err := asClient(t, *s, protocols[protocol], units); err != nil {
				t.Error(err)
			}
		})
	}
}

// A replay finds what is otherwise: here, what was recorded is changed instead of what today's
// end does. The last byte of an FPDU with data is in front of its pad and CRC.
func TestFinds(t *testing.T) {
	// FPDU, untagged header, fixed part of the header, read list, write list, count, handle.
	const chunkLength = mpa.LengthLen + ddp.UntaggedLen + rpcrdma.FixedSize + 4 + 4 + 4 + 4 + 3
	for _, tt := range []struct {
		name, scenario string
		us             side // the end that is replayed
		unit, at       int  // the byte that is changed; from the end of the FPDU if negative
		want           string
	}{
		{"results", "inline", client, 3, -5, "its message is"},
		{"what a write chunk has", "write-chunk", client, 4, chunkLength, "its header is"},
		{"data that is written", "write-chunk", client, 3, 2000, "bytes into our memory that are not"},
		{"data that is read", "read-chunk", client, 4, 2000, "its message is"},
		{"an error", "transport-error", client, 3, -5, "its header is"},
		{"a call back", "backward", client, 3, -6, "its message is"},
		{"private data", "null", client, 1, -3, "its private data is"},
		{"arguments", "inline", server, 2, -5, "its message is"},
		{"the length of a chunk", "write-chunk", server, 2, chunkLength, "its header is"},
		{"data of arguments", "read-chunk", server, 4, 2000, "bytes into our memory that are not"},
		{"an answer to a call back", "backward", server, 4, -6, "its message is"},
		{"results of a server", "inline", server, 3, -5, "the results are"},
		{"data of a server", "write-chunk", server, 3, 2000, "is not in the write chunk"},
		{"an error of a server", "program-error", server, 3, -5, "want GARBAGE_ARGS"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			units, err := fetch("testdata/v0.1/" + tt.scenario + ".version1")
			if err != nil {
				t.Fatal(err)
			}
			b := units[tt.unit].bytes
			at := tt.at
			if at < 0 {
				at += len(b)
			}
			b[at] ^= 1
			if tt.us == client {
				err = asServer(t, units)
			} else {
				for _, s := range scenarios {
					if s.name == tt.scenario {
						err = asClient(t, s, transport.Version1, units)
					}
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
