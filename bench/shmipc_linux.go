package bench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/cloudwego/shmipc-go"
)

// Shmipc sends size bytes and gets them back over a stream of shmipc-go. Its messages are in shared memory and are read
// there.
func Shmipc(size int) Workload {
	return Workload{
		Name:   fmt.Sprintf("Shmipc/size=%d", size),
		Server: &Server{Kind: "shmipc", Size: size},
		Client: func(addr string) (*Instance, error) {
			cfg := shmipc.DefaultSessionManagerConfig()
			cfg.Config, cfg.Network, cfg.Address, cfg.SessionNum = shmipcConfig(size), "unix", addr, 1
			m, err := shmipc.NewSessionManager(cfg)
			if err != nil {
				return nil, err
			}
			s, err := m.GetStream()
			if err != nil {
				return nil, errors.Join(err, m.Close())
			}
			message := make([]byte, size)
			return &Instance{
				Call: func(int) error {
					if _, err := s.BufferWriter().WriteBytes(message); err != nil {
						return err
					}
					if err := s.Flush(false); err != nil {
						return err
					}
					_, err := s.BufferReader().ReadBytes(size)
					s.BufferReader().ReleasePreviousRead()
					return err
				},
				Close: m.Close,
			}, nil
		},
	}
}

// shmipcConfig returns the configuration of the library's own benchmarks: messages are in buffers of their size.
func shmipcConfig(size int) *shmipc.Config {
	cfg := shmipc.DefaultConfig()
	cfg.MemMapType = shmipc.MemMapTypeMemFd
	cfg.ShareMemoryBufferCap = 256 << 20
	cfg.BufferSliceSizes = []*shmipc.SizePercentPair{{Size: uint32(size) + 256, Percent: 70}, {Size: 16 << 10, Percent: 20}, {Size: 64 << 10, Percent: 10}}
	cfg.LogOutput = io.Discard
	return cfg
}

func serveShmipc(size int) (*far, error) {
	dir, err := os.MkdirTemp("", "shmipc")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var sessions []*shmipc.Session
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := shmipc.Server(c, shmipcConfig(size))
			if err != nil {
				c.Close()
				continue
			}
			mu.Lock()
			sessions = append(sessions, s)
			mu.Unlock()
			running.Go(func() {
				for {
					stream, err := s.AcceptStream()
					if err != nil {
						return
					}
					running.Go(func() {
						for {
							in, err := stream.BufferReader().ReadBytes(size)
							if err == nil {
								_, err = stream.BufferWriter().WriteBytes(in)
							}
							stream.BufferReader().ReleasePreviousRead()
							if err == nil {
								err = stream.Flush(false)
							}
							if err != nil {
								return
							}
						}
					})
				}
			})
		}
	})
	return &far{addr: path, close: func() error {
		err := l.Close()
		mu.Lock()
		for _, s := range sessions {
			s.Close()
		}
		mu.Unlock()
		running.Wait()
		return errors.Join(err, os.RemoveAll(dir))
	}}, nil
}
