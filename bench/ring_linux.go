package bench

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RingPing is a round trip over memory shared by two processes, written by hand for this purpose only: both ends copy a
// message into a slot and poll for the next one. It is a reference for calls over shared memory.
func RingPing(size int) Workload {
	return Workload{
		Name:   fmt.Sprintf("RingPing/size=%d", size),
		Server: &Server{Kind: "ring", Size: size},
		Client: func(addr string) (*Instance, error) {
			f, err := os.OpenFile(addr, os.O_RDWR, 0)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			m, err := mapRing(int(f.Fd()))
			if err != nil {
				return nil, err
			}
			p := pinger{m: m, to: 0, from: 1, buf: make([]byte, size)}
			return &Instance{
				Call: func(int) error {
					p.send()
					p.receive(nil)
					return nil
				},
				Close: func() error { return unix.Munmap(m) },
			}, nil
		},
	}
}

// The memory has two slots of a page each: a counter, and a message in the next cache line.
const ringLen = 2 * 4096

func mapRing(fd int) ([]byte, error) {
	return unix.Mmap(fd, 0, ringLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// idle is the number of polls after which an end considers its peer idle.
const idle = 1 << 20

// pinger is one end.
type pinger struct {
	m              []byte
	to, from       int
	sent, received uint32
	buf            []byte
}

func (p *pinger) slot(i int) (*atomic.Uint32, []byte) {
	return (*atomic.Uint32)(unsafe.Pointer(&p.m[4096*i])), p.m[4096*i+64:][:len(p.buf)]
}

func (p *pinger) send() {
	count, message := p.slot(p.to)
	copy(message, p.buf)
	p.sent++
	count.Store(p.sent)
}

// receive polls until there is a message or over is set.
func (p *pinger) receive(over *atomic.Bool) bool {
	count, message := p.slot(p.from)
	for i := 1; count.Load() == p.received; i++ {
		if i%1024 == 0 {
			if over != nil && over.Load() {
				return false
			}
			if runtime.Gosched(); i > idle {
				time.Sleep(time.Millisecond) // another workload is running
			}
		}
	}
	p.received++
	copy(p.buf, message)
	return true
}

// servePing returns the answering end. Its address is that of its file.
func servePing(size int) (*far, error) {
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, ringLen)
	}
	if err != nil {
		return nil, err
	}
	m, err := mapRing(fd)
	if err != nil {
		return nil, err
	}
	var over atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		p := pinger{m: m, to: 1, from: 0, buf: make([]byte, size)}
		for p.receive(&over) {
			p.send()
		}
	})
	return &far{addr: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), close: func() error {
		over.Store(true)
		done.Wait()
		unix.Close(fd)
		return unix.Munmap(m)
	}}, nil
}

// Memmove copies size bytes from one mapping of shared memory to another.
func Memmove(size int) Workload {
	return Workload{
		Name:  "Memmove/size=" + binaryPrefix(size),
		Bytes: size,
		Setup: func() (*Instance, error) {
			var maps [2][]byte
			for i := range maps {
				fd, err := unix.MemfdCreate("copy", unix.MFD_CLOEXEC)
				if err == nil {
					err = unix.Ftruncate(fd, int64(size))
				}
				if err == nil {
					maps[i], err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
					unix.Close(fd)
				}
				if err != nil {
					return nil, err
				}
				clear(maps[i])
			}
			return &Instance{
				Call:  func(int) error { copy(maps[0], maps[1]); return nil },
				Close: func() error { unix.Munmap(maps[0]); return unix.Munmap(maps[1]) },
			}, nil
		},
	}
}
