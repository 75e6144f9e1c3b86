package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A mistake is a command line, and all that is said to it. Words in capitals stand for addresses
// and paths of a place.
type mistake struct {
	status int
	line   string // arguments, parted by spaces
	says   string // after "rpcrdma: "
}

// A place is where mistakes are made: servers, ports and files.
type place struct {
	real, named *strings.Replacer // a word in capitals to what it stands for, and back
}

func newPlace(words map[string]string) *place {
	var real, named []string
	for word, value := range words {
		real, named = append(real, word, value), append(named, value, word)
	}
	return &place{strings.NewReplacer(real...), strings.NewReplacer(named...)}
}

// tell runs the command, and checks what it says: one line, and with status 2 where help is. With
// --json it has to say the same.
func (p *place) tell(t *testing.T, m mistake) {
	t.Helper()
	args := strings.Fields(p.real.Replace(m.line))
	want := "rpcrdma: " + m.says + "\n"
	r := runCommand(t, args...)
	got := p.named.Replace(r.stderr)
	if m.status == 2 {
		help := regexp.MustCompile(`Run 'rpcrdma[ a-z-]* --help' for how it is used\.\n$`)
		if !help.MatchString(got) {
			t.Errorf("rpcrdma %s: it does not say where help is:\n%s", m.line, got)
		}
		got = help.ReplaceAllString(got, "")
	}
	if r.status != m.status || got != want {
		t.Errorf("rpcrdma %s\nstatus %d, want %d\n%swant\n%s", m.line, r.status, m.status, got, want)
	}
	if cmd, _, err := newRoot().Find(args[:1]); err != nil || cmd.Flags().Lookup("json") == nil || strings.Contains(m.line, "--json") {
		return
	}
	var stdout, stderr bytes.Buffer
	status := run(append([]string{args[0], "--json"}, args[1:]...), strings.NewReader(""), &stdout, &stderr)
	var e cli.ErrorJSON
	d := json.NewDecoder(&stderr)
	if err := d.Decode(&e); err != nil || d.More() || status != m.status || e.Status != m.status || p.named.Replace(e.Error) != m.says {
		t.Errorf("rpcrdma %s, with --json: status %d, %v\n%+v", m.line, status, err, e)
	}
}

// tellAll does so for all, some at a time.
func (p *place) tellAll(t *testing.T, all []mistake) {
	t.Helper()
	turns := make(chan struct{}, 4)
	var running sync.WaitGroup
	for _, m := range all {
		turns <- struct{}{}
		running.Go(func() {
			p.tell(t, m)
			<-turns
		})
	}
	running.Wait()
}

// Invalid command lines are refused before anything is done.
func TestMistakesOfUse(t *testing.T) {
	dir := t.TempDir()
	p := newPlace(map[string]string{"DIR": dir})
	testutil.WriteFiles(t, dir, map[string]string{"a/": "", "b/": ""})
	p.tellAll(t, []mistake{
		{2, "lss", `unknown command "lss", did you mean "ls"?`},
		{2, "--verbose ls nfs://host/", "flags belong after the command: 'rpcrdma ls FLAGS'"},
		{2, "lss -l nfs://host/", `unknown command "lss", did you mean "ls"?`},
		{2, "delete nfs://host/x", `unknown command "delete", did you mean "rm"?`},
		{2, "frobnicate", `unknown command "frobnicate"`},
		{2, "help frobnicate", `unknown command "frobnicate"`},
		{2, "--volume=11", "unknown flag --volume"},
		{2, "ls", "argument URL is missing"},
		{2, "put", "arguments LOCAL and URL are missing"},
		{2, "completion", "argument SHELL is missing: want bash, zsh, fish or powershell"},
		{2, "completion tcsh", `SHELL is "tcsh": want bash, zsh, fish or powershell`},
		{2, "completion bash zsh", `unexpected argument "zsh"`},
		{2, "completion --no-descriptions zsh", "unknown flag --no-descriptions"},
		{2, "devices now", `unexpected argument "now"`},
		{2, "ping a b", `unexpected argument "b"`},
		{2, "ls --timeot 3s nfs://host/", "unknown flag --timeot, did you mean --timeout?"},
		{2, "ls -x nfs://host/", "unknown flag -x"},
		{2, "ls nfs://host/ --timeout", "--timeout needs a value"},
		{2, "ls --timeout soon nfs://host/", `--timeout is "soon": want a time such as 90s or 2m, or none`},
		{2, "stats --interval often", `--interval is "often": want a time such as 500ms, 90s or 2m`},
		{2, "stats --count 3", "--interval is a time above 0, and --count a number of intervals"},
		{2, "ping --count many host", `--count is "many": want a whole number`},
		{2, "ping --count 0 host", "--count is 0, want 1 or more"},
		{2, "ping --vers three host", `--vers is "three": want a whole number of 0 to 4294967295`},
		{2, "ping --version 3 host", `--version is "3": want auto, 1 or 2`},
		{2, "ping --provider udp host", `--provider is "udp": want iwarp, rdma, auto or tcp`},
		{2, "serve --provider udp --dir DIR", `--provider is "udp": want iwarp, rdma, auto or tcp`},
		{2, "ping --provider tcp --wait poll host", "--wait is for --provider rdma"},
		{2, "ls --provider tcp --capture DIR/x nfs://host/", "--capture records RDMA, not --provider tcp: use tcpdump"},
		{2, "mv --provider tcp nfs://one/x nfs://two/x", "one and two are different servers: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'"},
		{2, "ping --wait poll host", "--wait is for --provider rdma"},
		{2, "ping --verbose=maybe host", `--verbose is "maybe": want true or false`},
		{2, "get --parallel 0 nfs://host/x y", "--parallel is 0, want 1 to 16384"},
		{2, "get --connections 65 nfs://host/x y", `--connections is "65": want 1 to 64`},
		{2, "get --resume nfs://host/x -", "only one file goes to standard output: - is not for -r and --json, nor for --resume"},
		{2, "ls --mount-port 99999 nfs://host/", `--mount-port is "99999": want 1 to 65535`},
		{2, "probe --ccp --version 2 host", "--ccp is for --version 1"},
		{2, "mkdir --mode rwx nfs://host/x", `--mode is "rwx": want permission bits in octal, such as 0755`},
		{2, "mv nfs://one/x nfs://two/x", "one:20049 and two:20049 are different servers: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'"},
		{2, "bench --op reed host", `--op "reed": want null, echo, read, write`},
		{2, "bench --size huge host", `--size "huge": want numbers such as 64, 4Ki or 1Mi, or a range of them, 4Ki..1Mi`},
		{2, "ping --capture-size 1G host", "--capture-snap, --capture-size, --capture-files and --capture-as are for --capture"},
		{2, "ls somewhere", `want nfs://HOST[:PORT]/EXPORT/PATH or HOST:/EXPORT/PATH, got "somewhere"`},
		{2, "ls host:export", `want nfs://HOST[:PORT]/EXPORT/PATH or HOST:/EXPORT/PATH, got "host:export"`},
		{2, "ls http://host/", `want nfs://HOST[:PORT]/EXPORT/PATH or HOST:/EXPORT/PATH, got "http://host/"`},
		{2, "watch http://host/", `want rdma://HOST[:PORT]/EXPORT/PATH or HOST:/EXPORT/PATH, got "http://host/"`},
		{2, "mount host:/export /mnt", `unknown command "mount": as root, 'mount -t nfs -o vers=3,proto=rdma,port=20049,nolock HOST:/EXPORT /MNT' mounts; 'rpcrdma ls HOST:/EXPORT' needs no mount`},
		{2, "umount /mnt", `unknown command "umount": 'umount /MNT' unmounts`},
		{2, "showmount -e host", `unknown command "showmount": 'rpcrdma exports HOST' lists the exports of a server`},
		{2, "exportfs -ra", `unknown command "exportfs": 'rpcrdma serve --export DIR' exports, and 'rpcrdma exports HOST' lists exports`},
		{2, "rpcinfo host", `unknown command "rpcinfo": 'rpcrdma ping --prog NUMBER --vers VERSION HOST' asks for a program`},
		{2, "nfsstat", `unknown command "nfsstat": 'rpcrdma stats' prints statistics`},
		{2, "serve --port 20049 --dir DIR", "unknown flag --port: the port to listen on is part of --addr, such as --addr :20049"},
		{2, "ping --port 20049 host", "unknown flag --port: the port of a server follows its name, such as HOST:20049"},
		{2, "get file nfs://host/x", "'rpcrdma put file nfs://host/x' copies that"},
		{2, "put nfs://host/x file", "'rpcrdma get nfs://host/x file' copies that"},
		{2, "get host:/x host:/y", "'rpcrdma cp host:/x host:/y' copies that"},
		{2, "cp file host:/y", "'rpcrdma put file host:/y' copies that"},
		{2, "cp one two", `want nfs://HOST[:PORT]/EXPORT/PATH or HOST:/EXPORT/PATH, got "one"`},
		{2, "serve srv", `unexpected argument "srv": to serve the directory srv: --dir srv`},
		{2, "serve --dir DIR srv", `unexpected argument "srv"`},
		{2, "get -r nfs://host/", "the copy of / needs a name: give LOCAL"},
		{2, "watch rdma://host:99999/", `URL "rdma://host:99999/": port "99999" is not one of 1 to 65535`},
		{2, "ls nfs:///export", `URL "nfs:///export": no host`},
		{2, "ls nfs://::1/", `URL "nfs://::1/": an IPv6 address must be in brackets`},
		{2, "ls nfs://host/what?", `URL "nfs://host/what?": a '?' in the path must be written %3F`},
		{2, "ping nfs://host/", `want HOST or HOST:PORT, got "nfs://host/"`},
		{2, "ping a:b:c", `want HOST or HOST:PORT, got "a:b:c"`},
		{2, "ping 20049", `want HOST or HOST:PORT, got "20049": a port alone is written :20049`},
		{2, "ping host:99999", `port "99999" of "host:99999" is not one of 1 to 65535`},
		{2, "bench host:0", `port "0" of "host:0" is not one of 1 to 65535`},
		{2, "probe --rpcbind host:20049", "--rpcbind finds the port: give HOST without :20049"},
		{2, "probe --rpcbind=host host", `--rpcbind wants =HOST:PORT, got "host"`},
		{2, "serve", "--dir DIR is missing: which directory?"},
		{2, "serve --dir DIR --addr 20049", `--addr: want HOST or HOST:PORT, got "20049": a port alone is written :20049`},
		{2, "serve --dir DIR --metrics-addr host:http:x", `--metrics-addr: want HOST or HOST:PORT, got "host:http:x"`},
		{2, "serve --dir DIR --allow 10.0.0", `--allow is "10.0.0": want a network such as 192.0.2.0/24, or an address`},
		{2, "serve --dir DIR --squash some", `--squash is "some": want none, root or all`},
		{2, "serve --dir DIR --anonuid 0", "the anonymous user cannot be root: --squash none does not take root's rights away"},
		{2, "serve --export DIR=x", `--export is "DIR=x": want DIR[=/NAME][,OPTION...]`},
		{2, "serve --export DIR/a=/x --export DIR/b=/x", `two exports have the name "/x"`},
	})
}

// strangers are servers that are not ours.
func strangers(t *testing.T) map[string]string {
	words := make(map[string]string)
	serve := func(word string, answer func(net.Conn)) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		var serving sync.WaitGroup
		end := make(chan struct{})
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serving.Go(func() {
					answer(c)
					if word == "SILENT" {
						<-end
					}
					c.Close()
				})
			}
		})
		t.Cleanup(func() {
			close(end)
			l.Close()
			serving.Wait()
		})
		words[word] = l.Addr().String()
	}
	after := func(say string) func(net.Conn) {
		return func(c net.Conn) {
			c.Read(make([]byte, 1000)) // what is not read makes the end a reset
			io.WriteString(c, say)
		}
	}
	serve("SSH", func(c net.Conn) {
		io.WriteString(c, "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")
		c.Read(make([]byte, 1000))
	})
	serve("HTTP", after("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
	serve("ALERT", after("\x15\x03\x03\x00\x02\x02\x0a"))
	serve("BINARY", after("\x00\x00\x00\x01"))
	serve("ESCAPES", after("hello \x1b[2J"))
	serve("LONG", after(strings.Repeat("long ", 100)))
	serve("HANGUP", after(""))
	serve("SILENT", after(""))
	web := httptest.NewServer(nil)
	t.Cleanup(web.Close)
	words["WEB"] = web.Listener.Addr().String()
	secure := httptest.NewUnstartedServer(nil)
	secure.TLS = &tls.Config{}
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	words["TLS"] = secure.Listener.Addr().String()
	return words
}

// Errors say which server answers, or that none does, and what may be meant.
func TestMistakesOfPlaces(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--dir", dir, "--tcp-addr", "127.0.0.1:0")
	other, err := transport.NewServer(nil)
	testutil.Must(t, err)
	l, err := other.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { other.Serve(l) })
	t.Cleanup(func() {
		other.Close()
		serving.Wait()
	})
	words := strangers(t)
	words["SERVER"], words["TCP"] = s.addr, s.tcp
	words["OTHER"], words["DIR"] = l.Addr().String(), dir
	const (
		no  = "ping: no connection to "
		ask = "; is there an RDMA server?"
	)
	newPlace(words).tellAll(t, []mistake{
		{1, "ping nobody.invalid", no + "nobody.invalid:20049 over iwarp: no such host: check the name, or give an address"},
		{1, "ls nfs://nobody.invalid/", "ls nfs://nobody.invalid/: no connection to nobody.invalid:20049 over iwarp: no such host: check the name, or give an address"},
		{1, "ping 127.0.0.1:1", no + "127.0.0.1:1 over iwarp: connection refused: nothing listens there; is the server running, and is this its port?"},
		{1, "ls 127.0.0.1:/no/such?", "ls 127.0.0.1:/no/such?: no connection to 127.0.0.1:20049 over iwarp: connection refused: nothing listens there; a server over TCP is reached with --provider tcp"},
		{1, "ls [::1]:/", "ls [::1]:/: no connection to [::1]:20049 over iwarp: connection refused: nothing listens there; a server over TCP is reached with --provider tcp"},
		{1, "ls nfs://127.0.0.1:1/", "ls nfs://127.0.0.1:1/: no connection to 127.0.0.1:1 over iwarp: connection refused: nothing listens there; is the server running, and is this its port?"},
		{1, "ping SSH", no + "SSH over iwarp: not an iWARP server (it answered with SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3): check the port"},
		{1, "watch rdma://HTTP/", "watch rdma://HTTP/: no connection to HTTP over iwarp: not an iWARP server (it answered with HTTP/1.1 400 Bad Request): check the port"},
		{1, "ping ALERT", no + "ALERT over iwarp: not an iWARP server (it answered with TLS): use --tls require, or check the port"},
		{1, "ping BINARY", no + "BINARY over iwarp: not an iWARP server (it answered with something that is not text): check the port"},
		{1, "ping ESCAPES", no + "ESCAPES over iwarp: not an iWARP server (it answered with hello ): check the port"},
		{1, "ping LONG", no + "LONG over iwarp: not an iWARP server (it answered with " + strings.Repeat("long ", 12) + "long...): check the port"},
		{1, "probe HANGUP", "probe: no connection to HANGUP over iwarp: the other end closed the connection" + ask},
		{1, "ping TLS", no + "TLS over iwarp: the other end closed the connection" + ask},
		{1, "ping TCP", "ping: TCP is an ONC RPC server over TCP, not RDMA: use --provider tcp"},
		{1, "ls nfs://TCP/", "ls nfs://TCP/: TCP is an ONC RPC server over TCP, not RDMA: use --provider tcp"},
		{1, "ping --provider tcp SERVER", "ping SERVER: connection lost: the other end closed the connection"},
		{1, "ping --provider tcp 127.0.0.1:1", no + "127.0.0.1:1 over tcp: connection refused: nothing listens there; is the server running, and is this its port?"},
		{1, "ping SILENT", no + "SILENT over iwarp: the other end takes connections and does not answer" + ask},
		{1, "ping --timeout 200ms SILENT", "ping: no answer from the server for 200ms: connecting to SILENT over iwarp"},
		{1, "stats 127.0.0.1:1", "stats: 127.0.0.1:1: connection refused: nothing listens there"},
		{1, "stats SERVER", "stats: SERVER does not speak HTTP: give the --metrics-addr of 'rpcrdma serve', not its --addr"},
		{1, "stats SSH", "stats: SSH does not speak HTTP: give the --metrics-addr of 'rpcrdma serve', not its --addr"},
		{1, "stats WEB", `stats: WEB is not the --metrics-addr of 'rpcrdma serve': it answers 404 Not Found, "text/plain; charset=utf-8"`},
		{1, "stats --timeout 200ms SILENT", "stats: SILENT: no answer in 200ms"},
		{1, "ping --vers 4 SERVER", "ping SERVER: the server has NFS in version 3 only, not 4 (PROG_MISMATCH)"},
		{1, "ping --prog 300000 SERVER", "ping SERVER: the server does not have program 300000 (PROG_UNAVAIL)"},
		{1, "ls --mount-port 1 nfs://OTHER/", "ls nfs://OTHER/: no MOUNT on the NFS connection (the server does not have MOUNT (PROG_UNAVAIL)), nor on one of its own: no connection to 127.0.0.1:1 over tcp: connection refused: nothing listens there; is the server running, and is this its port?"},
		{1, "watch rdma://OTHER/", "watch rdma://OTHER/: the server does not have RPCRDMA_NOTIFY (PROG_UNAVAIL): of servers, 'rpcrdma serve' alone can be watched"},
		{1, "bench OTHER", "bench OTHER: the server does not have RPCRDMA_BENCH (PROG_UNAVAIL): of servers, 'rpcrdma serve' alone can be measured"},
		{1, "ls --rpcbind=:1 nfs://127.0.0.1/", "ls nfs://127.0.0.1/: asking the rpcbind at 127.0.0.1:1 for NFS version 3 over rdma: connection refused: nothing listens there"},
		{1, "serve --dir DIR --addr SERVER", "serve: listening on SERVER: address already in use: stop what has it, or give --addr another port, 0 for a free one"},
		{1, "serve --dir DIR --addr 127.0.0.1:0 --tcp-addr SERVER", "serve: listening on SERVER: address already in use: stop what has it, or give --tcp-addr another port, 0 for a free one"},
		{1, "serve --dir DIR --addr 127.0.0.1:0 --metrics-addr SERVER", "serve: listening on SERVER: address already in use: stop what has it, or give --metrics-addr another port, 0 for a free one"},
		{1, "serve --dir DIR --addr 192.0.2.1", "serve: listening on 192.0.2.1:20049: this machine does not have the address: give one that it has, or :PORT for all"},
		{1, "serve --dir DIR --addr nobody.invalid", "serve: listening on nobody.invalid:20049: no such host: check the name, or give an address"},
		{1, "serve --dir DIR --addr 127.0.0.1:0 --rpcbind=127.0.0.1:1", "serve: registering NFS version 3 over rdma with the rpcbind at 127.0.0.1:1: connection refused: nothing listens there"},
	})
}

// Forty command lines of people on their first day: each is answered in one line that has what to do
// next.
func TestMistakesOfFirstDay(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x", "dir/file": "x"})
	testutil.WriteFiles(t, local, map[string]string{"file": "x", "tree/file": "x", "nothing": "# nothing\n"})
	s := startServer(t, "--export", dir+"=/srv", "--export", dir+"=/closed,allow=192.0.2.0/24", "--tcp-addr", "127.0.0.1:0")
	words := strangers(t)
	words["SERVER"], words["TCP"], words["LOCAL"] = s.addr, s.tcp, local
	p := newPlace(words)
	for _, tt := range []struct{ line, next string }{
		{"mount host:/srv /mnt", "'mount -t nfs -o vers=3,proto=rdma,port=20049,nolock HOST:/EXPORT /MNT'"},
		{"umount /mnt", "'umount /MNT'"},
		{"showmount -e host", "'rpcrdma exports HOST'"},
		{"exportfs -v", "'rpcrdma serve --export DIR'"},
		{"rpcinfo -p host", "'rpcrdma ping --prog NUMBER --vers VERSION HOST'"},
		{"nfsstat", "'rpcrdma stats'"},
		{"lss SERVER", `did you mean "ls"?`},
		{"download nfs://host/x", `did you mean "get"?`},
		{"--verbose ls nfs://host/", "'rpcrdma ls FLAGS'"},
		{"serve", "--dir DIR"},
		{"serve LOCAL", "--dir LOCAL"},
		{"serve --dir LOCAL --port 20049", "--addr :20049"},
		{"serve --dir LOCAL --addr 20049", "a port alone is written :20049"},
		{"serve --dir LOCAL --addr SERVER", "give --addr another port"},
		{"serve --dir LOCAL --addr 192.0.2.1", "give one that it has, or :PORT for all"},
		{"serve --dir LOCAL --allow 10.0.0", "want a network such as 192.0.2.0/24"},
		{"serve --dir LOCAL --addr 127.0.0.1:0 --metrics-addr SERVER", "give --metrics-addr another port"},
		{"ls SERVER", "want nfs://HOST[:PORT]/EXPORT/PATH or HOST:/EXPORT/PATH"},
		{"ls nfs://SERVER/nope", "the server exports only /srv, /closed"},
		{"ls nfs://SERVER/closed", "the server does not export it to this machine"},
		{"ls 127.0.0.1:/srv", "--provider tcp"},
		{"ls nfs://TCP/srv", "--provider tcp"},
		{"ls nfs://nobody.invalid/", "check the name, or give an address"},
		{"ls --provider udp nfs://SERVER/", "want iwarp, rdma, auto or tcp"},
		{"ls --provider auto nfs://127.0.0.1:1/", "is the server running, and is this its port?"},
		{"get nfs://SERVER/srv/dir LOCAL/x", "-r copies it"},
		{"get LOCAL/file nfs://SERVER/srv/x", "'rpcrdma put LOCAL/file nfs://SERVER/srv/x'"},
		{"put nfs://SERVER/srv/file LOCAL/x", "'rpcrdma get nfs://SERVER/srv/file LOCAL/x'"},
		{"cp LOCAL/file nfs://SERVER/srv/x", "'rpcrdma put LOCAL/file nfs://SERVER/srv/x'"},
		{"put LOCAL/tree nfs://SERVER/srv/tree", "-r copies it"},
		{"rm nfs://SERVER/srv/dir", "-r removes it"},
		{"mkdir nfs://SERVER/srv/a/b", "-p makes it"},
		{"mv nfs://SERVER/srv/file nfs://SERVER/srv/a/b", "'rpcrdma mkdir -p' makes it"},
		{"mv nfs://SERVER/srv/file nfs://TCP/srv/file", "copy with 'rpcrdma cp' and remove with 'rpcrdma rm'"},
		{"ping TCP", "use --provider tcp"},
		{"ping SSH", "check the port"},
		{"ping --port 20049 host", "HOST:20049"},
		{"ping 127.0.0.1:1", "is the server running, and is this its port?"},
		{"stats SERVER", "give the --metrics-addr of 'rpcrdma serve'"},
		{"decode LOCAL/nothing", "want hexadecimal digits, or a capture"},
	} {
		r := runCommand(t, strings.Fields(p.real.Replace(tt.line))...)
		lines := strings.SplitAfter(p.named.Replace(r.stderr), "\n")
		if strings.HasPrefix(lines[0], "rpcrdma: provider iwarp: ") { // as auto says first
			lines = lines[1:]
		}
		want := 1
		if r.status == 2 { // where help is
			want++
		}
		if r.status == 0 || !strings.Contains(lines[0], tt.next) || len(lines) != want+1 || lines[want] != "" {
			t.Errorf("rpcrdma %s: status %d, want one line with %s:\n%s", tt.line, r.status, tt.next, p.named.Replace(r.stderr))
		}
	}
}

// The error for a provider that does not exist says so.
func TestMistakesOfProviders(t *testing.T) {
	_, err := provider.Devices()
	says := "this build has provider iwarp alone: provider rdma needs a build with cgo and rdma-core"
	switch {
	case errors.Is(err, rdmacm.ErrNotBuilt):
	case provider.HasDevices():
		t.Skip("this machine has RDMA devices: TestRDMABadInput is about them")
	default:
		says = "this machine has no RDMA device"
	}
	const instead = "; --provider iwarp needs no device"
	dir := t.TempDir()
	newPlace(map[string]string{"DIR": dir}).tellAll(t, []mistake{
		{1, "ping --provider rdma 127.0.0.1", "ping: provider rdma: " + says + instead},
		{1, "get --provider rdma nfs://127.0.0.1/x y", "get nfs://127.0.0.1/x: provider rdma: " + says + instead},
		{1, "serve --provider rdma --addr 127.0.0.1:0 --dir DIR", "serve: provider rdma: " + says + instead},
	})
}

// Errors of files, at both ends.
func TestMistakesOfFiles(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{
		"file": "x", "dir/file": "x", "full/x/": "", "loop": "-> loop", "dangling": "-> nowhere", "away": "-> ../..",
	})
	testutil.WriteFiles(t, local, map[string]string{
		"file": "x", "dir/file": "x", "exports": "/srv/data\n/srv/home,rw\n", "relative": "data\n", "nothing": "# nothing\n",
		"spaces": "/srv/my data\n", "missing": "\n/nowhere=/x\n", "garbage": "\x00\x01\x02\xff", "words": "what\n", "cut": "0001\n",
		"pcap": "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x93\x00\x00\x00",
	})
	s := startServer(t, "--export", dir+"=/", "--export", dir+"=/ro,ro", "--export", dir+"=/closed,allow=192.0.2.0/24")
	h := &hostile{
		entries: map[string][]nfs.DirEntry{"/": {hostileEntry("gone", "gone", nfs.TypeReg), hostileEntry("full", "full", nfs.TypeReg)}},
		denied:  map[string]nfs.Status{"gone": nfs.StatusStale, "full": nfs.StatusIO},
	}
	p := newPlace(map[string]string{"SERVER": s.addr, "HOSTILE": h.start(t), "LOCAL": local, "DIR": dir})
	p.tellAll(t, []mistake{
		{1, "get nfs://SERVER/nope LOCAL/x", "get nfs://SERVER/nope: no such file (NFS3ERR_NOENT)"},
		{1, "get nfs://SERVER/dir LOCAL/x", "get nfs://SERVER/dir: is a directory (-r copies it)"},
		{1, "get nfs://SERVER/file/x LOCAL/x", "get nfs://SERVER/file/x: not a directory (NFS3ERR_NOTDIR)"},
		{1, "get nfs://SERVER/loop LOCAL/x", "get nfs://SERVER/loop: too many symbolic links"},
		{1, "get nfs://SERVER/away LOCAL/x", "get nfs://SERVER/away: symbolic link leaves the export"},
		{1, "get nfs://SERVER/file LOCAL/no/such", "get nfs://SERVER/file: local file LOCAL/no: no such file or directory"},
		{1, "get -r nfs://SERVER/dir LOCAL/file", "get nfs://SERVER/dir: local file LOCAL/file: not a directory"},
		{1, "get nfs://HOSTILE/gone LOCAL/x", "get nfs://HOSTILE/gone: the file is gone (NFS3ERR_STALE)"},
		{1, "cat nfs://HOSTILE/full", "cat nfs://HOSTILE/full: the server could not read or write its disk (NFS3ERR_IO)"},
		{1, "cat nfs://SERVER/dir", "cat nfs://SERVER/dir: is a directory (NFS3ERR_ISDIR)"},
		{1, "put LOCAL/nope nfs://SERVER/x", "put nfs://SERVER/x: local file LOCAL/nope: no such file or directory"},
		{1, "put LOCAL/dir nfs://SERVER/x", "put nfs://SERVER/x: LOCAL/dir is a directory (-r copies it)"},
		{1, "put LOCAL/file nfs://SERVER/no/such", "put nfs://SERVER/no/such: /no: no such file (NFS3ERR_NOENT)"},
		{1, "put - nfs://SERVER/dir/", "put nfs://SERVER/dir/: is a directory: standard input needs the name of a file"},
		{1, "put LOCAL/file nfs://SERVER/ro/x", "put nfs://SERVER/ro/x: the server is read-only (NFS3ERR_ROFS)"},
		{1, "cp nfs://SERVER/file nfs://SERVER/file", "cp nfs://SERVER/file to nfs://SERVER/file: both are the same"},
		{1, "mv nfs://SERVER/file nfs://SERVER/ro/x", "mv nfs://SERVER/file: exports / and /ro are different: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'"},
		{1, "mv nfs://SERVER/file nfs://SERVER/no/x", "mv nfs://SERVER/file: the directory above /no/x does not exist ('rpcrdma mkdir -p' makes it)"},
		{1, "mkdir nfs://SERVER/dir", "mkdir nfs://SERVER/dir: file exists (NFS3ERR_EXIST)"},
		{1, "mkdir nfs://SERVER/no/such", "mkdir nfs://SERVER/no/such: a directory above it is missing (-p makes it)"},
		{1, "rm nfs://SERVER/full", "rm nfs://SERVER/full: is a directory (-r removes it)"},
		{1, "rm -r nfs://SERVER/", "rm nfs://SERVER/: is an export, which cannot be removed"},
		{1, "ls nfs://SERVER/closed", "ls nfs://SERVER/closed: mounting /closed: permission denied (MNT3ERR_ACCES): the server does not export it to this machine, or to this user"},
		{1, "watch rdma://SERVER/file", "watch rdma://SERVER/file: not a directory (NOTDIR)"},
		{1, "watch rdma://SERVER/closed", "watch rdma://SERVER/closed: no such directory (NOENT), or its export is not for this host: see --allow of 'rpcrdma serve'"},
		{1, "serve --addr 127.0.0.1:0 --dir LOCAL/nope", "serve: local file LOCAL/nope: no such file or directory"},
		{1, "serve --addr 127.0.0.1:0 --dir LOCAL/file", "serve: local file LOCAL/file: not a directory"},
		{1, "serve --addr 127.0.0.1:0 --dir LOCAL --state LOCAL/dir", "serve: --state LOCAL/dir is in LOCAL, which is exported"},
		{1, "serve --addr 127.0.0.1:0 --dir DIR --access-log LOCAL/no/log", "serve: local file LOCAL/no/log: no such file or directory"},
		{1, "serve --addr 127.0.0.1:0 --dir DIR --capture LOCAL/no/file", "serve: local file LOCAL/no/file: no such file or directory"},
		{1, "serve --dir DIR --sec krb5p --keytab LOCAL/nope", "serve: --sec: keytab: stat LOCAL/nope: no such file or directory"},
		{1, "serve --dir DIR --sec krb5p --keytab LOCAL/file", "serve: --sec: keytab LOCAL/file: byte array is less than 2 bytes: 1"},
		{1, "serve --exports LOCAL/nope", "serve: LOCAL/nope: no such file or directory"},
		{1, "serve --exports LOCAL/exports", `serve: LOCAL/exports:2: want ro, squash=, anonuid=, anongid=, allow= or sec=, not "rw"`},
		{1, "serve --exports LOCAL/relative", `serve: LOCAL/relative:1: want the whole path of a directory, not "data"`},
		{1, "serve --exports LOCAL/nothing", "serve: LOCAL/nothing: no exports: want DIR[=/NAME][,OPTION...], one to a line"},
		{1, "serve --exports LOCAL/spaces", `serve: LOCAL/spaces:1: want DIR[=/NAME][,OPTION...] without spaces, such as /srv/data=/data,ro; "\ " is a space in a name`},
		{1, "serve --addr 127.0.0.1:0 --exports LOCAL/missing", "serve: LOCAL/missing:2: local file /nowhere: no such file or directory"},
		{1, "decode LOCAL/nope", "decode: local file LOCAL/nope: no such file or directory"},
		{1, "decode LOCAL/dir", "decode: LOCAL/dir is a directory"},
		{1, "decode LOCAL/pcap", "decode: LOCAL/pcap: no RPC-over-RDMA: looked for iWARP over TCP, on any port, and RoCE v2, on UDP port 4791, and found no packets"},
		{1, "decode LOCAL/garbage", "decode: LOCAL/garbage is neither a capture, pcap or pcapng, nor hexadecimal text"},
		{1, "decode LOCAL/words", `decode: LOCAL/words:1: "what" is not hexadecimal`},
		{1, "decode LOCAL/nothing", "decode: LOCAL/nothing: no message: want hexadecimal digits, or a capture"},
	})
}

// Errors that end work in progress.
func TestMistakesOfTime(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "huge"), nil, 0o644), os.Truncate(filepath.Join(dir, "huge"), 1<<40))
	for _, tt := range []struct {
		name string
		end  func(*testServer, *exec.Cmd)
		want string // all that is said, as a regular expression
	}{
		{"the server is killed", func(s *testServer, _ *exec.Cmd) { s.kill() }, `connection lost: the other end closed the connection( \((connection reset by peer|broken pipe)\))?`},
		{"interrupt", func(_ *testServer, cmd *exec.Cmd) { cmd.Process.Signal(os.Interrupt) }, "interrupted"},
	} {
		s := startServer(t, "--dir", dir)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		cmd := command(ctx, "get", s.url("/huge"), "-")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		testutil.Must(t, err, cmd.Start())
		_, err = io.CopyN(io.Discard, out, 1<<20)
		testutil.Must(t, err)
		tt.end(s, cmd)
		io.Copy(io.Discard, out)
		cmd.Wait()
		cancel()
		want := regexp.MustCompile(`^rpcrdma: get ` + regexp.QuoteMeta(s.url("/huge")) + ": " + tt.want + "\n$")
		if cmd.ProcessState.ExitCode() != 1 || !want.Match(stderr.Bytes()) {
			t.Errorf("%s: %v, want %q:\n%s", tt.name, cmd.ProcessState, tt.want, &stderr)
		}
	}
}

// With --retry, a server may come after its client.
func TestRetryFirstConnection(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	addr := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := command(ctx, "get", "--retry", "30s", "nfs://"+addr+"/file", filepath.Join(local, "file"))
	var said cmdtest.LineBuffer
	cmd.Stderr = &said
	testutil.Must(t, cmd.Start())
	testutil.Eventually(t, "it waits", func() bool {
		return strings.Contains(said.String(), "nothing listens there: trying for 30s to get a connection\n")
	})
	startServer(t, "--dir", dir, "--addr", addr)
	if err := cmd.Wait(); err != nil || !strings.HasSuffix(said.String(), ": connected\n") {
		t.Errorf("%v:\n%s", err, &said)
	}
	if b, err := os.ReadFile(filepath.Join(local, "file")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}

	begun := time.Now()
	r := runCommand(t, "get", "--retry", "300ms", "nfs://127.0.0.1:1/file", filepath.Join(local, "x"))
	if took := time.Since(begun); r.status != 1 || strings.Count(r.stderr, "\n") != 2 || took < 300*time.Millisecond {
		t.Errorf("status %d after %v:\n%s", r.status, took, r.stderr)
	}
	// Errors that time does not mend are not waited for.
	mustFail(t, 1, "no such host", "get", "--retry", "1h", "nfs://nobody.invalid/file", filepath.Join(local, "x"))
}
