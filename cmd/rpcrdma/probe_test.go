package main

import (
	"encoding/json"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// fillIn sets the zero values in a struct to something else.
func fillIn(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			fillIn(f)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int:
			f.SetInt(int64(100 + i))
		case reflect.Uint32, reflect.Uint64:
			f.SetUint(uint64(100 + i))
		case reflect.String:
			f.SetString("text")
		}
	}
}

// The JSON has every field of transport.ConnInfo, under a similar name.
func TestProbeTellsAll(t *testing.T) {
	var i transport.ConnInfo
	fillIn(reflect.ValueOf(&i).Elem())
	i.LocalAddr, i.RemoteAddr = &net.TCPAddr{Port: 1}, &net.TCPAddr{Port: 2}
	i.ConfigError = errors.New("text")
	text, err := json.Marshal(newInfoJSON(i, "answered"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	check := func(typ reflect.Type, in map[string]any) {
		for k := range typ.NumField() {
			name := typ.Field(k).Name
			found := false
			for key, v := range in {
				key = strings.ReplaceAll(key, "_", "")
				if strings.EqualFold(key, name) || strings.EqualFold(key+"addr", name) {
					found = v != nil && !reflect.ValueOf(v).IsZero()
				}
			}
			if !found {
				t.Errorf("%s.%s is not in\n%s", typ.Name(), name, text)
			}
		}
	}
	check(reflect.TypeOf(i), got)
	caps, _ := got["capabilities"].(map[string]any)
	check(reflect.TypeOf(i.Capabilities), caps)
}

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
		i := decodeJSON[infoJSON](t, mustRun(t, "probe", "--ccp", "--json", addr))
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
		plain := decodeJSON[infoJSON](t, mustRun(t, "probe", "--json", addr))
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
