package measure

import (
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// Begin records the provenance before a measurement. modules are dependencies with versions that matter.
func Begin(command string, o Options, modules ...string) *result.Provenance {
	p := &result.Provenance{
		Date:    time.Now().UTC(),
		Commit:  commit(),
		Machine: fmt.Sprintf("%s, %d CPUs", processor(), runtime.NumCPU()),
		Kernel:  runtime.GOOS + " " + fileText("/proc/sys/kernel/osrelease") + congestion(),
		Go:      fmt.Sprintf("%s %s/%s, GOMAXPROCS %d", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0)),
		Devices: devices(),
		Command: command,
		Rounds:  o.Rounds,
		Run:     o.Run,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(modules, m.Path) {
				p.Modules = append(p.Modules, m.Path+" "+m.Version)
			}
		}
	}
	p.Load[0] = loadAverage()
	// The load average includes our own compilation for minutes. Measure the current load
	// instead.
	w := watchOthers(Options{})
	time.Sleep(time.Second)
	p.Idle, p.Busy = w.result()
	return p
}

// congestion describes the congestion control of TCP, if known. One that paces is slower over loopback, by a factor
// that depends on the program.
func congestion() string {
	if name := fileText("/proc/sys/net/ipv4/tcp_congestion_control"); name != "" {
		return ", TCP " + name
	}
	return ""
}

// End completes the provenance after a measurement.
func End(p *result.Provenance) {
	p.Load[1] = loadAverage()
	p.Duration = time.Since(p.Date).Round(time.Second)
}

// others measures the CPU usage of other processes.
type others struct {
	start      time.Time
	all, mine  time.Duration
	ok, shared bool
}

// crowded is the share of the machine's CPU time above which other processes disturb a result.
const crowded = 0.25

// Others measures the CPU usage of other processes from now on. The returned function reports how many CPUs they used,
// and whether that is too much.
func Others() func() (used result.Float, tooMuch bool) { return watchOthers(Options{}).result }

func watchOthers(o Options) others {
	w := others{start: time.Now(), shared: o.Shared}
	w.all, w.ok = machineTime()
	w.mine = familyTime()
	return w
}

// result returns the number of CPUs that others have used, or NaN if unknown, and whether that is too much.
func (w others) result() (used result.Float, tooMuch bool) {
	all, ok := machineTime()
	mine := familyTime()
	took := time.Since(w.start)
	if !ok || !w.ok || w.shared || took <= 0 {
		return result.Float(math.NaN()), false
	}
	v := max(0, float64(all-w.all)-float64(mine-w.mine)) / float64(took)
	return result.Float(v), v > crowded*float64(runtime.NumCPU())
}

// machineTime returns the total CPU time of the machine, including steal time (proc_stat(5)).
func machineTime() (time.Duration, bool) {
	return parseStat(fileText("/proc/stat"))
}

func parseStat(text string) (time.Duration, bool) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, false
	}
	const tick = time.Second / 100 // USER_HZ
	var sum time.Duration
	// user, nice, system, idle, iowait, irq, softirq, steal
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, false
		}
		if i != 3 && i != 4 {
			sum += time.Duration(n) * tick
		}
	}
	return sum, true
}

// devices returns the RDMA devices, and the network devices of the addresses in the environment, with their MTU.
func devices() []string {
	list := RDMADevices()
	for _, kind := range []string{"RXE", "SIW", "HW"} {
		addr := os.Getenv("RPCRDMA_" + kind + "_ADDR")
		if addr == "" {
			continue
		}
		interfaces, err := net.Interfaces()
		if err != nil {
			continue
		}
		for _, i := range interfaces {
			addrs, err := i.Addrs()
			if err != nil {
				continue
			}
			for _, a := range addrs {
				if ip, _, _ := strings.Cut(a.String(), "/"); ip == addr {
					list = append(list, fmt.Sprintf("%s on %s with MTU %d", addr, i.Name, i.MTU))
				}
			}
		}
	}
	return list
}

// RDMADevices returns the names of the machine's RDMA devices.
func RDMADevices() []string {
	entries, err := os.ReadDir("/sys/class/infiniband")
	if err != nil {
		return nil
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// Hardware returns the devices that are hardware: those on a bus.
func Hardware(devices []string) []string {
	var list []string
	for _, d := range devices {
		if _, err := os.Stat(filepath.Join("/sys/class/infiniband", d, "device")); err == nil {
			list = append(list, d)
		}
	}
	return list
}

// CommitVariable is the environment variable with the commit, for a process in a virtual machine without git.
const CommitVariable = "RPCRDMA_BENCH_COMMIT"

// Commit returns the commit of the working tree in the current directory.
func Commit() string { return commit() }

// commit asks git, because go run does not record the commit.
func commit() string {
	if c := os.Getenv(CommitVariable); c != "" {
		return c
	}
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	s := strings.TrimSpace(string(head))
	if changes, err := exec.Command("git", "status", "--porcelain").Output(); err == nil && len(changes) > 0 {
		s += ", with changes"
	}
	return s
}

func processor() string {
	for line := range strings.Lines(fileText("/proc/cpuinfo")) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage returns the load average of the last minute.
func loadAverage() string {
	load, _, _ := strings.Cut(fileText("/proc/loadavg"), " ")
	if load == "" {
		return "unknown"
	}
	return load
}

// fileText returns the content of a file, or "".
func fileText(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
