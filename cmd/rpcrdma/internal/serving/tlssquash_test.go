package serving

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestCertUsers: what a file of --tls-squash may say, and what it makes of certificates.
func TestCertUsers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	many := strings.TrimSuffix(strings.Repeat("1,", 18), ",")
	for _, tt := range []struct{ text, want string }{
		{"", "0"}, {"# DNS:a 1:1\n\n \t\n", "0"}, {"DNS:a 1:2", "1"}, {"subject:CN=a b,O=c 1:2,3 # c\r\nDNS:b root", "2"},
		{"DNS:a", ":1: want the name"}, {"a 1:2", ":1: want the name"}, {"dns:a 1:2", ":1: want the name"}, {"DNS: 1:2", ":1: want the name"},
		{"DNS:a 1:2\nDNS:a 3:4", ":2: DNS:a is there twice"}, {"DNS:a 1:", ":1: \"\" is not a number"}, {"DNS:a -1:1", "is not a number"},
		{"DNS:a 4294967296:1", "is not a number"}, {"DNS:a no-such-user-here", "no-such-user-here"}, {"DNS:a 1:" + many, "18 groups"},
		{strings.Repeat("#", 1<<20+1), "larger than"},
	} {
		testutil.Must(t, os.WriteFile(file, []byte(tt.text), 0o600))
		users, err := readCertUsers(file)
		got := fmt.Sprint(len(users))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.want) || (err == nil) != (len(tt.want) == 1) {
			t.Errorf("%.40q: %s, want %s", tt.text, got, tt.want)
		}
	}
	users := certUsers{"DNS:b": (&oncrpc.AuthSys{UID: 7}).Auth()}
	for want, names := range map[oncrpc.Flavor][]string{oncrpc.FlavorSys: {"DNS:a", "DNS:b"}, oncrpc.FlavorNone: {"DNS:a"}} {
		if got := users.credential(rpc.Peer{Certificate: names}); got.Flavor != want {
			t.Errorf("%v: %v", names, got)
		}
	}
}
