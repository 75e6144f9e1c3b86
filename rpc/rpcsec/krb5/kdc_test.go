package krb5

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

// A kdc is MIT's KDC, with a realm of its own in a directory.
type kdc struct {
	dir, config string
	env         []string
}

// newKDC starts a KDC that runs until the test ends. It needs no privileges.
func newKDC(t testing.TB) *kdc {
	t.Helper()
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	for _, name := range []string{"krb5kdc", "kdb5_util", "kadmin.local", "kinit"} {
		if _, err := exec.LookPath(name); err != nil {
			rdmatest.Lacking(t, "kdc", "MIT's KDC is not installed (Debian: krb5-kdc, krb5-admin-server, krb5-user): "+err.Error())
		}
	}
	for range 5 { // another process may take the port that has been free
		if k := startKDC(t); k != nil {
			return k
		}
	}
	t.Fatal("the KDC ends")
	return nil
}

// startKDC returns nil if the KDC ends at once.
func startKDC(t testing.TB) *kdc {
	t.Helper()
	k := &kdc{dir: t.TempDir()}
	k.config = filepath.Join(k.dir, "krb5.conf")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	k.write(t, "krb5.conf", `[libdefaults]
 default_realm = EXAMPLE.COM
 dns_lookup_kdc = false
 dns_lookup_realm = false
 udp_preference_limit = 1
[realms]
 EXAMPLE.COM = {
  kdc = `+addr+`
 }
`)
	k.write(t, "kdc.conf", fmt.Sprintf(`[realms]
 EXAMPLE.COM = {
  database_name = %[1]s/principal
  key_stash_file = %[1]s/stash
  acl_file = %[1]s/acl
  kdc_listen = %[2]s
  kdc_tcp_listen = %[2]s
  max_life = 1d
 }
[logging]
 kdc = STDERR
`, k.dir, addr))
	k.env = append(os.Environ(), "KRB5_CONFIG="+k.config, "KRB5_KDC_PROFILE="+filepath.Join(k.dir, "kdc.conf"), "KRB5CCNAME=FILE:"+k.cache())
	k.run(t, "", "kdb5_util", "create", "-s", "-W", "-r", "EXAMPLE.COM", "-P", "master")
	cmd := exec.Command("krb5kdc", "-n", "-P", filepath.Join(k.dir, "pid"), "-r", "EXAMPLE.COM")
	cmd.Env = append(k.env, "KRB5_TRACE=/dev/null")
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

func (k *kdc) cache() string { return filepath.Join(k.dir, "cache") }

func (k *kdc) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (k *kdc) run(t testing.TB, in string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdin = k.env, strings.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

// keytab adds a principal with keys of some types, and returns the path of its keytab.
func (k *kdc) keytab(t testing.TB, principal, etypes string) string {
	t.Helper()
	path := filepath.Join(k.dir, strings.ReplaceAll(principal, "/", "-")+".keytab")
	k.run(t, "", "kadmin.local", "-r", "EXAMPLE.COM", "addprinc", "-randkey", "-e", etypes, principal)
	k.run(t, "", "kadmin.local", "-r", "EXAMPLE.COM", "ktadd", "-norandkey", "-k", path, principal)
	return path
}
