// Package kdctest runs MIT's KDC for tests.
package kdctest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// AES is the type of the keys that every implementation supports.
const AES = "aes256-cts-hmac-sha1-96:normal"

// A KDC is MIT's KDC, with its own realm in a directory.
type KDC struct {
	Realm  string
	Dir    string
	Config string   // path of its krb5.conf
	Cache  string   // path of the credentials cache for programs with Env
	Env    []string // for programs that use it
}

// New starts a KDC for a realm. It runs until the test ends and needs no privileges. Without MIT's programs, New skips
// the test, or fails it if RPCRDMA_REQUIRE names "kdc".
func New(t testing.TB, realm string) *KDC {
	t.Helper()
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	for _, name := range []string{"krb5kdc", "kdb5_util", "kadmin.local", "kinit"} {
		if _, err := exec.LookPath(name); err != nil {
			rdmatest.Lacking(t, "kdc", "MIT's KDC is not installed (Debian: krb5-kdc, krb5-admin-server, krb5-user): "+err.Error())
		}
	}
	for range 5 { // another process may have taken the free port
		if k := start(t, realm); k != nil {
			return k
		}
	}
	t.Fatal("the KDC ends")
	return nil
}

// start returns nil if the KDC exits immediately.
func start(t testing.TB, realm string) *KDC {
	t.Helper()
	k := &KDC{Realm: realm, Dir: t.TempDir()}
	k.Config, k.Cache = filepath.Join(k.Dir, "krb5.conf"), filepath.Join(k.Dir, "cache")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	k.write(t, "krb5.conf", `[libdefaults]
 default_realm = `+realm+`
 dns_lookup_kdc = false
 dns_lookup_realm = false
 udp_preference_limit = 1
[realms]
 `+realm+` = {
  kdc = `+addr+`
 }
`)
	k.write(t, "kdc.conf", fmt.Sprintf(`[realms]
 %[3]s = {
  database_name = %[1]s/principal
  key_stash_file = %[1]s/stash
  acl_file = %[1]s/acl
  kdc_listen = %[2]s
  kdc_tcp_listen = %[2]s
  max_life = 1d
 }
[logging]
 kdc = STDERR
`, k.Dir, addr, realm))
	k.Env = append(os.Environ(), "KRB5_CONFIG="+k.Config, "KRB5_KDC_PROFILE="+filepath.Join(k.Dir, "kdc.conf"), "KRB5CCNAME=FILE:"+k.Cache)
	k.Run(t, "", "kdb5_util", "create", "-s", "-W", "-r", realm, "-P", "master")
	cmd := exec.Command("krb5kdc", "-n", "-P", filepath.Join(k.Dir, "pid"), "-r", realm)
	cmd.Env = append(k.Env, "KRB5_TRACE=/dev/null")
	k.write(t, "log", "")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			return nil
		}
		if strings.Contains(lines.Text(), "commencing operation") {
			break
		}
	}
	go func() { // until it ends
		for buf := make([]byte, 4096); ; {
			if _, err := out.Read(buf); err != nil {
				return
			}
		}
	}()
	return k
}

func (k *KDC) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(k.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Run runs a program with Env and an input. The program must succeed.
func (k *KDC) Run(t testing.TB, in string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdin = k.Env, strings.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

// Keytab adds a principal with keys of the given types, and returns the path of its keytab.
func (k *KDC) Keytab(t testing.TB, principal, etypes string) string {
	t.Helper()
	path := filepath.Join(k.Dir, strings.ReplaceAll(principal, "/", "-")+".keytab")
	k.Run(t, "", "kadmin.local", "-r", k.Realm, "addprinc", "-randkey", "-e", etypes, principal)
	k.Run(t, "", "kadmin.local", "-r", k.Realm, "ktadd", "-norandkey", "-k", path, principal)
	return path
}
