package main

import (
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestProbeConfigures(t *testing.T) {
	for _, on := range []bool{true, false} {
		cfg := &transport.ServerConfig{Config: transport.Config{NoPrivateData: true}}
		if on {
			cfg.RFC5666 = &transport.RFC5666{ConfigProtocol: &transport.ConfigProtocol{Align: 64, MaxReads: 3}}
		}
		s, err := transport.NewServer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		addr := l.Addr().String()

		out := mustRun(t, "probe", "--ccp", addr)
		i := decodeJSON[look.InfoJSON](t, mustRun(t, "probe", "--ccp", "--json", addr))
		want := "configured             yes: the server serves 3 RDMA Reads at once, recommends alignment 64\n"
		if on {
			if !i.Configured || i.ConfigError != "" || i.PeerReads == nil || *i.PeerReads != 3 || i.PeerAlign == nil || *i.PeerAlign != 64 || i.InlineSend != 4096 || i.InlineRecv != 4096 {
				t.Errorf("%+v", i)
			}
		} else {
			want = "configured             no: the server does not have program 100417 (PROG_UNAVAIL)\n"
			if i.Configured || !strings.Contains(i.ConfigError, "PROG_UNAVAIL") || i.PeerReads != nil || i.PeerAlign != nil || i.InlineSend != 1024 {
				t.Errorf("%+v", i)
			}
		}
		if !strings.Contains(out, want) {
			t.Errorf("probe prints\n%s", out)
		}
		plain := decodeJSON[look.InfoJSON](t, mustRun(t, "probe", "--json", addr))
		if plain.Configured || plain.ConfigError != "" || plain.Version != 2 || plain.InlineSend != 4096 {
			t.Errorf("without --ccp: %+v", plain)
		}
		if out := mustRun(t, "probe", addr); strings.Contains(out, "configured") {
			t.Errorf("without --ccp probe prints\n%s", out)
		}
		s.Close()
		<-served
	}
}
