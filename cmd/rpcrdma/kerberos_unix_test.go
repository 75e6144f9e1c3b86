//go:build unix

package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/internal/testing/kdctest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A realm has a KDC, the server nfs/localhost, and users that are users of this machine, too.
type realm struct {
	*kdctest.KDC
	t      *testing.T
	server string // keytab
}

func newRealm(t *testing.T, name string) *realm {
	k := kdctest.New(t, name)
	return &realm{k, t, k.Keytab(t, "nfs/localhost", kdctest.AES)}
}

// as returns the options of a client that has a key of a principal.
func (r *realm) as(principal, sec string) []string {
	r.t.Helper()
	path := filepath.Join(r.Dir, strings.ReplaceAll(principal, "/", "-")+".keytab")
	if _, err := os.Stat(path); err != nil {
		r.Keytab(r.t, principal, kdctest.AES)
	}
	return []string{"--sec", sec, "--keytab", path, "--principal", principal}
}

// TestKerberos: serve knows users by Kerberos, over iWARP and TCP, with each service, and gives them their own rights.
func TestKerberos(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a server that is not root has the same rights for all users")
	}
	r := newRealm(t, "EXAMPLE.COM")
	t.Setenv("KRB5_CONFIG", r.Config)
	dir, local := publicDir(t), t.TempDir()
	testutil.Must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	testutil.WriteFiles(t, dir, map[string]string{"public": "for all", "daemon": "daemon's", "bin": "bin's"})
	for name, id := range map[string]int{"daemon": 1, "bin": 2} { // on every Linux
		testutil.Must(t, os.Chown(filepath.Join(dir, name), id, id), os.Chmod(filepath.Join(dir, name), 0o600))
	}
	testutil.WriteFiles(t, local, map[string]string{"big": strings.Repeat("text ", 500_000), "principals": "# users\nalice@EXAMPLE.COM daemon\nhost/backup@EXAMPLE.COM daemon\n"})
	log := filepath.Join(local, "log")
	s := startServer(t, "--export", dir+"=/all", "--export", dir+"=/private,sec=krb5p", "--tcp-addr", "127.0.0.1:0", "--squash", "root",
		"--sec", "krb5p,krb5i,krb5", "--keytab", r.server, "--principals", filepath.Join(local, "principals"), "--access-log", log)

	for provider, addr := range map[string]string{"iwarp": s.addr, "tcp": s.tcp} {
		url := strings.Replace("nfs://"+addr, "127.0.0.1", "localhost", 1)
		for _, sec := range []string{"krb5", "krb5i", "krb5p"} {
			t.Run(provider+"/"+sec, func(t *testing.T) {
				with := append(r.as("daemon", sec), "--provider", provider)
				run := func(args ...string) string { t.Helper(); return mustRun(t, append(args, with...)...) }
				if out := run("cat", url+"/all/daemon"); out != "daemon's" {
					t.Errorf("cat prints %q", out)
				}
				mustFail(t, 1, "NFS3ERR_ACCES", append([]string{"cat", url + "/all/bin"}, with...)...)
				name := provider + sec
				run("put", filepath.Join(local, "big"), url+"/all/"+name)
				got := decodeJSON[copying.ResultJSON](t, run("get", "--json", url+"/all/"+name, filepath.Join(local, name)))
				if placed := provider == "iwarp" && sec != "krb5i"; (got.Stats.WriteChunk > 0) != placed {
					t.Errorf("%d bytes came to their place, expected: %v", got.Stats.WriteChunk, placed)
				}
				wantFile(t, filepath.Join(local, name), strings.Repeat("text ", 500_000))
				if out := run("ls", url+"/all/"); !strings.Contains(out, name+"\n") {
					t.Errorf("ls prints %q", out)
				}
				host, _, _ := strings.Cut(strings.TrimPrefix(url, "nfs://"), "/")
				root := textAt(t, mustRun(t, "call", "--provider", provider, mountX, host, "MNT", `"/all"`), "mountinfo", "fhandle")
				handle := textAt(t, run("call", nfsX, host, "LOOKUP", fmt.Sprintf(`{"dir": %q, "name": "daemon"}`, root)), "resok", "object")
				call := []string{"call", nfsX, host, "READ", fmt.Sprintf(`{"file": %q, "offset": 0, "count": 100}`, handle)}
				if got := textAt(t, run(call...), "resok", "data"); got != base64.StdEncoding.EncodeToString([]byte("daemon's")) {
					t.Errorf("READ returns %q", got)
				}
				if got := textAt(t, mustRun(t, append(call, "--provider", provider)...), "status"); got != "NFS3ERR_ACCES" {
					t.Errorf("READ as AUTH_SYS returns %s", got)
				}
				mustFail(t, 1, "KDC_ERR_S_PRINCIPAL_UNKNOWN", append(append(call, "--service", "other"), with...)...)
				info, err := os.Stat(filepath.Join(dir, name))
				testutil.Must(t, err)
				if st := info.Sys().(*syscall.Stat_t); st.Uid != 1 || st.Gid != 1 {
					t.Errorf("the file is %d's", st.Uid)
				}
			})
		}
	}

	url := strings.Replace(s.url(""), "127.0.0.1", "localhost", 1)
	const refused, nobody = "NFS3ERR_ACCES", "NFS3ERR_ACCES"
	other := newRealm(t, "OTHER.COM")
	for _, tt := range []struct {
		name, file, fails string
		with              []string
		env               string
	}{
		{"by the table", "/all/daemon", "", r.as("alice", "krb5i"), ""},
		{"a machine by the table", "/all/daemon", "", r.as("host/backup", "krb5"), ""},
		{"a user without an account", "/all/public", "", r.as("nouser", "krb5"), ""},
		{"a user without an account", "/all/daemon", nobody, r.as("nouser", "krb5"), ""},
		{"a machine", "/all/public", "", r.as("host/daemon", "krb5p"), ""},
		{"a machine", "/all/daemon", nobody, r.as("host/daemon", "krb5p"), ""},
		{"a service", "/all/daemon", nobody, r.as("nfs/daemon", "krb5p"), ""},
		{"root", "/all/daemon", nobody, r.as("root", "krb5p"), ""},
		{"privacy", "/private/daemon", "", r.as("daemon", "krb5p"), ""},
		{"integrity where privacy is required", "/private/daemon", refused, r.as("daemon", "krb5i"), ""},
		{"AUTH_SYS where Kerberos is required", "/all/public", refused, nil, ""},
		{"another realm", "/all/public", "KRB_AP_ERR_NOKEY", other.as("daemon", "krb5p"), other.Config},
		{"no tickets", "/all/public", "kinit gets tickets", []string{"--sec", "krb5p"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.env != "" {
				t.Setenv("KRB5_CONFIG", tt.env)
			}
			args := append([]string{"cat", url + tt.file}, tt.with...)
			if tt.fails == "" {
				mustRun(t, args...)
			} else {
				mustFail(t, 1, tt.fails, args...)
			}
		})
	}

	// With the tickets of kinit, and after the table has changed.
	r.Run(t, "", "kinit", "-k", "-t", filepath.Join(r.Dir, "alice.keytab"), "alice")
	t.Setenv("KRB5CCNAME", "FILE:"+r.Cache)
	mustRun(t, "cat", "--sec", "krb5p", url+"/all/daemon")
	testutil.Must(t, os.WriteFile(filepath.Join(local, "principals"), []byte("alice@EXAMPLE.COM bin\n"), 0o600), s.cmd.Process.Signal(syscall.SIGHUP))
	testutil.Eventually(t, "alice is bin", func() bool { return runCommand(t, "cat", "--sec", "krb5p", url+"/all/bin").status == 0 })

	testutil.Must(t, s.stop())
	text, err := os.ReadFile(log)
	testutil.Must(t, err)
	for _, want := range []string{
		` principal="daemon@EXAMPLE.COM" service="privacy" as_uid=1 as_gid=1 export="/private"`,
		` principal="nfs/daemon@EXAMPLE.COM" service="privacy" as_uid=65534 as_gid=65534 export="/all"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the access log lacks %q:\n%s", want, text)
		}
	}
}
