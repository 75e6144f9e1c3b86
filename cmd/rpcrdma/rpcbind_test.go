package main

import (
	"testing"
)

func TestRPCBindMessages(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "ls nfs://127.0.0.1/: asking the rpcbind at 127.0.0.1:1 for NFS version 3 over rdma: connection refused", []string{"ls", "--rpcbind=:1", "nfs://127.0.0.1/"}},
		{1, "ping: asking the rpcbind at [::1]:1 for NFS version 3 over rdma6: ", []string{"ping", "--rpcbind=:1", "[::1]"}},
		{1, "probe: asking the rpcbind at 127.0.0.1:1 for", []string{"probe", "--rpcbind=127.0.0.1:1", "nowhere.invalid"}},
		{1, "registering NFS version 3 over rdma with the rpcbind at 127.0.0.1:1: connection refused", []string{"serve", "--dir", dir, "--addr", "127.0.0.1:0", "--rpcbind=127.0.0.1:1"}},
		{2, "--rpcbind finds the port: give the URL without :20049", []string{"ls", "--rpcbind", "nfs://host:20049/"}},
		{2, "--rpcbind finds the port: give HOST without :20049", []string{"ping", "--rpcbind", "host:20049"}},
		{2, "with --rpcbind want HOST", []string{"probe", "--rpcbind", "a:b:c"}},
		{2, "--rpcbind wants =HOST:PORT", []string{"probe", "--rpcbind=host", "host"}},
		{2, "--rpcbind wants =HOST:PORT", []string{"serve", "--rpcbind=host:", "--dir", dir}},
		{2, "want HOST or HOST:PORT", []string{"probe", "a:b:c"}},
	} {
		mustFail(t, tt.status, tt.text, tt.args...)
	}
}
