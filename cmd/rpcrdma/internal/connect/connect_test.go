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

// HOST:/PATH, as mount(8) has it, is a URL as well, and its path needs no escapes.
func TestMountNames(t *testing.T) {
	for arg, want := range map[string]string{
		"host:/": "nfs://host:20049/", "host:/a/../b c?#%": "nfs://host:20049/b%20c%3F%23%25", "192.0.2.1:/x": "nfs://192.0.2.1:20049/x",
		"[fd09::1]:/x": "nfs://[fd09::1]:20049/x", "fd09::1:/x:/y": "nfs://[fd09::1]:20049/x:/y", "nfs://host:1/x": "nfs://host:1/x",
		"host:x": "", "/x": "", "": "", ":/x": "", "[fd09::1:/x": "", "a b:/x": "", "http://host/": "",
	} {
		u, err := new(Options).ParseURL(new(cobra.Command), arg)
		if (err == nil) != (want != "") || err == nil && u.String() != want {
			t.Errorf("%q: %v, %v, want %q", arg, u, err, want)
		}
	}
}
