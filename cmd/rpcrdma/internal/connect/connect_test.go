package connect

import (
	"testing"

	"github.com/spf13/cobra"
)

// An argument without a port has the default port.
func TestDefaultPort(t *testing.T) {
	for arg, want := range map[string]string{
		"localhost": "localhost:20049", "localhost:1": "localhost:1", "192.0.2.1": "192.0.2.1:20049", "::1": "[::1]:20049", "[::1]": "[::1]:20049",
		"[::1]:7": "[::1]:7", "": "", "a:b:c": "", "[::1": "",
	} {
		addr, err := new(Options).CheckAddr(new(cobra.Command), arg)
		if addr != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", arg, addr, err, want)
		}
	}
}
