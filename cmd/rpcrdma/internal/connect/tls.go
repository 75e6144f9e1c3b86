package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TLSHelp is the help topic about --tls.
const TLSHelp = `--tls require encrypts connections with TLS 1.3, and fails without it:

  --provider tcp    RPC-with-TLS (RFC 9289), which other servers and clients have, too
  --provider iwarp  TLS below iWARP, which this program has at both ends

--tls prefer, only over tcp, falls back to plain text with a peer that does not support TLS.
That does not protect from an attacker on the path. RDMA devices do not encrypt, and shared
memory does not leave the machine.

A client verifies that the server's certificate is for the host it connects to, with the
authorities in --tls-ca, or the system's. --tls-cert and --tls-key are the client's own
certificate and key, for servers that require one. A server needs both; with --tls-ca, it
serves only clients with a certificate from those authorities. 'rpcrdma serve --tls-squash'
maps clients to users. 'rpcrdma serve' also answers MOUNT over TCP without TLS, because Linux
with xprtsec= calls it in plain text.

Files are in PEM format. They may be replaced while the program runs: later connections use
the new files, except for a client's --tls-ca. If the new files are invalid, or do not match
yet, the old ones stay in use, and the log says why.`

// Values of --tls.
const (
	tlsOff     = "off"
	tlsRequire = "require"
	tlsPrefer  = "prefer"
)

// tlsOptions holds the TLS flags.
type tlsOptions struct {
	mode          choice
	cert, key, ca string // FILE

	once   sync.Once
	config *tls.Config // for both roles
	err    error
}

// TLSFlags returns the names of the TLS flags.
func TLSFlags() []string { return []string{"tls", "tls-cert", "tls-key", "tls-ca"} }

func (o *tlsOptions) add(cmd *cobra.Command) {
	o.mode = choice{tlsOff, []string{tlsOff, tlsRequire, tlsPrefer}}
	flags := cmd.Flags()
	flags.Var(&o.mode, "tls", "encrypt connections, see 'rpcrdma help tls'")
	flags.StringVar(&o.cert, "tls-cert", "", "this end's certificates for TLS, in `FILE`, in PEM, its own first")
	flags.StringVar(&o.key, "tls-key", "", "private key of --tls-cert, in PEM, in `FILE`")
	flags.StringVar(&o.ca, "tls-ca", "", "certificates of the authorities that certify the other end, in PEM, in `FILE`")
	for _, name := range TLSFlags()[1:] {
		cli.CompleteFile(cmd, name)
	}
}

// CheckTLS rejects invalid combinations of TLS flags. A server must have a certificate.
func (o *Options) CheckTLS(server bool) error {
	t := &o.tls
	switch {
	case t.mode.Value == tlsOff && (t.cert != "" || t.key != "" || t.ca != ""):
		return errors.New("--tls-cert, --tls-key and --tls-ca are for --tls require or prefer")
	case t.mode.Value == tlsOff:
		return nil
	case o.shm != "":
		return errors.New("--tls is not for --shm, which does not leave this machine")
	case o.Provider.Value != provider.TCP && o.Provider.Value != provider.IWARP:
		return fmt.Errorf("--tls is for --provider tcp and iwarp, not %s: RDMA devices encrypt nothing", o.Provider.Value)
	case o.Provider.Value != provider.TCP && t.mode.Value == tlsPrefer:
		return errors.New("--tls prefer is for --provider tcp: over iwarp both ends have TLS, or neither has")
	case (t.cert == "") != (t.key == ""):
		return errors.New("--tls-cert and --tls-key must be given together")
	case server && t.cert == "":
		return errors.New("--tls requires --tls-cert and --tls-key, which identify the server")
	}
	return nil
}

// Certified reports whether a server with these options identifies its clients by certificate.
func (o *Options) Certified() bool { return o.tls.mode.Value == tlsRequire && o.tls.ca != "" }

// TLSFiles returns the TLS flags that are set to a file, with the file.
func (o *Options) TLSFiles() iter.Seq2[string, string] {
	return func(yield func(flag, file string) bool) {
		for i, file := range []string{o.tls.key, o.tls.cert, o.tls.ca} {
			if file != "" && !yield([]string{"tls-key", "tls-cert", "tls-ca"}[i], file) {
				return
			}
		}
	}
}

// TLS returns the configuration for TCP connections of either end, or nil without --tls. Errors of replaced
// certificates go to stderr.
func (o *Options) TLS(stderr io.Writer) (*transport.TLS, error) {
	cfg, err := o.tlsConfig(stderr)
	if cfg == nil || err != nil {
		return nil, err
	}
	return &transport.TLS{Config: cfg, Optional: o.tls.mode.Value == tlsPrefer}, nil
}

// tlsConfig returns the configuration for connections of both roles, or nil without --tls.
func (o *Options) tlsConfig(stderr io.Writer) (*tls.Config, error) {
	t := &o.tls
	if t.mode.Value == tlsOff {
		return nil, nil
	}
	t.once.Do(func() {
		f := &certFiles{names: [3]string{t.cert, t.key, t.ca}, log: o.Logger(stderr)}
		if t.err = f.load(); t.err != nil {
			return
		}
		t.config = &tls.Config{
			// The authorities are not reloaded: VerifyConnection, which could use new ones, does not know for which IP
			// address a certificate must be.
			RootCAs:              f.ca,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &f.current().Certificates[0], nil },
			GetConfigForClient:   func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.current(), nil },
		}
	})
	return t.config, t.err
}

// certFiles holds a certificate, its key and authorities, in files that may be replaced at any time.
type certFiles struct {
	names [3]string // of the certificate, the key and the authorities; empty: none
	log   *slog.Logger

	mu     sync.Mutex
	seen   [3]fs.FileInfo // state when last read, successfully or not
	ca     *x509.CertPool // nil: no authorities
	server *tls.Config    // for client connections
}

// current returns the configuration of a server, from the latest valid files.
func (f *certFiles) current() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.stat(); !slices.EqualFunc(now[:], f.seen[:], sameFile) {
		if err := f.load(); err != nil {
			f.log.Error("new TLS certificates rejected, keeping the old ones", "err", explain.Text(err))
		} else {
			f.log.Info("TLS certificates reloaded")
		}
	}
	return f.server
}

func (f *certFiles) stat() (infos [3]fs.FileInfo) {
	for i, name := range f.names {
		if name != "" {
			infos[i], _ = os.Stat(name) // reading reports the error
		}
	}
	return infos
}

// sameFile reports whether a file is unchanged. Nil means that it does not exist.
func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// load reads the files. If it fails, the previous contents remain in use.
func (f *certFiles) load() error {
	f.seen = f.stat() // before reading, so that later changes are noticed
	cfg := &tls.Config{
		Certificates: make([]tls.Certificate, 1), // empty if there is no certificate
		// Verify the certificate for each connection, not only for the first of a session.
		SessionTicketsDisabled: true,
	}
	if f.names[0] != "" {
		pair, err := tls.LoadX509KeyPair(f.names[0], f.names[1])
		if err != nil {
			return CertError("--tls-cert and --tls-key", err)
		}
		cfg.Certificates[0] = pair
	}
	if f.names[2] != "" {
		pool, err := ReadAuthorities("--tls-ca", f.names[2])
		if err != nil {
			return err
		}
		cfg.ClientCAs, cfg.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	f.ca, f.server = cfg.ClientCAs, cfg
	return nil
}

// CertError adds to an error of a certificate and key the names of their options.
func CertError(options string, err error) error {
	if errors.As(err, new(*os.PathError)) {
		return err
	}
	return fmt.Errorf("%s: %w", options, err)
}

// ReadAuthorities reads the certificates of authorities from an option's file.
func ReadAuthorities(option, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no PEM certificate in %s", option, explain.Printable(file))
	}
	return pool, nil
}
