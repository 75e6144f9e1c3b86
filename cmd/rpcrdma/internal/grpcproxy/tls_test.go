package grpcproxy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// certificate writes a certificate for this machine, which certifies itself, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	testutil.Must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	testutil.Must(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	testutil.Must(t,
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

// TestTLS: HTTP/2 is TLS on either side of the proxy, if it is asked for, and nothing else.
func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	b := beds(false)[0]
	call := func(cc grpc.ClientConnInterface) error {
		in, out := wrapperspb.Bytes([]byte("x")), new(wrapperspb.BytesValue)
		return cc.Invoke(t.Context(), "/test.Peer/Echo", in, out)
	}
	t.Run("served", func(t *testing.T) {
		leak.Check(t)
		plain, p := through(t, b, newPeer().register, "--http-cert", cert, "--http-key", key)
		if err := call(plain); status.Code(err) != codes.Unavailable {
			t.Errorf("without TLS: %v", err)
		}
		ca, err := credentials.NewClientTLSFromFile(cert, "")
		testutil.Must(t, err)
		if err := call(dialHTTP(t, p.addr, grpc.WithTransportCredentials(ca))); err != nil {
			t.Errorf("with TLS: %v", err)
		}
	})
	t.Run("used", func(t *testing.T) {
		leak.Check(t)
		pair, err := tls.LoadX509KeyPair(cert, key)
		testutil.Must(t, err)
		srv := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
		newPeer().register(srv)
		to := serveHTTP(t, srv)
		for _, tt := range []struct {
			args []string
			code codes.Code
			text string
		}{
			{[]string{"--http-ca", cert}, codes.OK, ""},
			{[]string{"--http-tls"}, codes.Unavailable, "certificate signed by unknown authority"},
			{nil, codes.Unavailable, ""},
		} {
			p := start(t, append(tt.args, "--reverse", "--addr", "127.0.0.1:0", to)...)
			if err := call(dialRDMA(t, b, p.addr)); status.Code(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%q: %v", tt.args, err)
			}
		}
	})
}
