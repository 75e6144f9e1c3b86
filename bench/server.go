package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Server has the parameters for starting the far end of a workload, in this process or in another one.
type Server struct {
	Kind  string `json:"kind"` // protocol, see here
	Size  int    `json:"size,omitempty"`
	Depth int    `json:"depth,omitempty"`
	Read  int    `json:"read,omitempty"`
	Tuned bool   `json:"tuned,omitempty"`
	Unix  bool   `json:"unix,omitempty"` // use a Unix domain socket
	TLS   bool   `json:"tls,omitempty"`

	// For servers of this module.
	Site Site `json:"site,omitzero"`
	Ends Ends `json:"ends,omitzero"`

	// For clients that are far ends: the address of their server.
	Addr string `json:"addr,omitempty"`
}

// far is a running far end.
type far struct {
	addr     string
	counters func() Counters       // nil: no counters
	usage    func() (Usage, error) // of a separate process: without memory
	settle   func() (Usage, error) // including memory, which takes longer
	open     func(n int) error     // connections of an "idle" client
	close    func() error
}

// A Usage is the resource usage of a process.
type Usage struct {
	CPU        time.Duration `json:"cpu_ns"`
	Resident   int           `json:"resident"` // bytes, after garbage collection
	Goroutines int           `json:"goroutines"`
}

// here starts the far end in this process.
func (s *Server) here() (*far, error) {
	switch s.Kind {
	case "echo":
		return s.serve(func(c net.Conn) error { return echo(c, s.Size) })
	case "copy":
		return s.serve(func(c net.Conn) error { return receive(c, s.Size, s.Read) })
	case "bulk":
		return s.serve(func(c net.Conn) error { return echoInBulk(c, s.Size) })
	case "mpa":
		return s.serve(greet)
	case "netrpc":
		return s.serveNetRPC()
	case "grpc":
		return s.serveGRPC()
	case "grpcrdma":
		return s.serveGRPCRDMA()
	case "ttrpc":
		return s.serveTTRPC()
	case "oncrpc":
		return s.serve(func(c net.Conn) error { return serveRecords(c, s.Size) })
	case "rpc":
		return s.serveRPC()
	case "idle":
		return s.idleClients()
	case "shmipc":
		return serveShmipc(s.Size)
	case "ring":
		return servePing(s.Size)
	case "write":
		return s.receiveWrites()
	}
	return nil, fmt.Errorf("no server is called %q", s.Kind)
}

// childVariable is the environment variable that makes a program that calls [Child] a far end
// or a hog.
const childVariable = "RPCRDMA_BENCH_CHILD"

// Child does not return if the process was started as a far end or a hog. Programs that use
// [Workload.Split] or [Hogs] must call it first.
func Child() {
	text := os.Getenv(childVariable)
	switch text {
	case "":
		return
	case hogChild:
		hog()
	}
	if err := child(text, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child runs a far end, which prints its address, answers each line of in with one line, and
// exits at the end of in.
func child(text string, in io.Reader, out io.Writer) error {
	var s Server
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	f, err := s.here()
	if err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	if err := answers.Encode(f.addr); err != nil {
		return errors.Join(err, f.close())
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		command, number, _ := strings.Cut(lines.Text(), " ")
		if command == "open" {
			n, err := strconv.Atoi(number)
			if err == nil {
				err = f.open(n)
			}
			if err != nil {
				return errors.Join(err, f.close())
			}
		}
		look := usage
		if command != "usage" {
			look = settle
		}
		u, err := look()
		if err == nil {
			err = answers.Encode(u)
		}
		if err != nil {
			return errors.Join(err, f.close())
		}
	}
	return f.close()
}

// apart starts the far end in a separate process.
func (s *Server) apart() (*far, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	// The race detector would make every process wait for a second when it exits.
	cmd.Env = append(os.Environ(), childVariable+"="+string(text), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() error { return errors.Join(in.Close(), cmd.Wait()) }
	answers := json.NewDecoder(out)
	f := &far{close: sync.OnceValue(stop)}
	if err := answers.Decode(&f.addr); err != nil {
		return nil, errors.Join(fmt.Errorf("the server's process ended: %w", err), stop())
	}
	var mu sync.Mutex
	ask := func(line string) (u Usage, err error) {
		mu.Lock()
		defer mu.Unlock()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			return u, err
		}
		err = answers.Decode(&u)
		return u, err
	}
	f.usage = func() (Usage, error) { return ask("usage") }
	f.settle = func() (Usage, error) { return ask("settle") }
	f.open = func(n int) error {
		_, err := ask("open " + strconv.Itoa(n))
		return err
	}
	return f, nil
}

// usage returns the usage of this process.
func usage() (Usage, error) {
	u := Usage{CPU: ProcessorTime(), Goroutines: runtime.NumGoroutine()}
	return u, nil
}

// settle returns the usage including memory, after garbage collection.
func settle() (Usage, error) {
	runtime.GC()
	debug.FreeOSMemory()
	u, err := usage()
	if err != nil {
		return u, err
	}
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return u, err
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return u, err
	}
	u.Resident = resident * os.Getpagesize()
	return u, nil
}

// listen listens on a free port, or on a free Unix domain name.
func (s *Server) listen() (net.Listener, error) {
	if s.Unix {
		return net.ListenUnix("unix", &net.UnixAddr{Net: "unix"})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if s.TLS {
		return listenTLS(l, err)
	}
	return l, err
}

// serve serves each connection on a new goroutine.
func (s *Server) serve(serve func(net.Conn) error) (*far, error) {
	l, err := s.listen()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var errs []error
	conns := make(map[net.Conn]bool)
	closed := false
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if closed {
				c.Close()
			}
			conns[c] = true
			mu.Unlock()
			wg.Go(func() {
				err := serve(c)
				c.Close()
				mu.Lock()
				defer mu.Unlock()
				delete(conns, c)
				if err != nil && !errors.Is(err, io.EOF) && !closed {
					errs = append(errs, err)
				}
			})
		}
	})
	return &far{addr: l.Addr().String(), close: func() error {
		err := l.Close()
		mu.Lock()
		closed = true
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
		return errors.Join(append(errs, err)...)
	}}, nil
}

func dialServer(addr string) (net.Conn, error) {
	if addr[0] == '@' {
		return net.Dial("unix", addr)
	}
	if strings.HasPrefix(addr, tlsPrefix) {
		return dialTLS(addr)
	}
	return net.Dial("tcp", addr)
}
