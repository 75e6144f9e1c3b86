package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/grpcrdma/examples/files/pb"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestFiles: files of several chunks come back as they were, and names lead nowhere else.
func TestFiles(t *testing.T) {
	for name, p := range map[string]fabric.Provider{"iwarp": iwarp.New(iwarp.Config{}), "tcp": transport.TCP{}} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			dir, err := os.OpenRoot(t.TempDir())
			testutil.Must(t, err)
			defer dir.Close()
			srv := newServer(dir)
			l, err := srv.Listen(t.Context(), p, "127.0.0.1:0")
			testutil.Must(t, err)
			go srv.Serve(l)
			defer srv.Stop()
			cc, err := grpcrdma.Dial(t.Context(), p, l.Addr().String(), messages)
			testutil.Must(t, err)
			defer cc.Close()
			c := pb.NewFilesClient(cc)

			data := make([]byte, 2*chunkSize+12345)
			rand.NewChaCha8([32]byte{}).Read(data)
			for _, data := range [][]byte{data, data[:chunkSize], nil} {
				if n, err := put(t.Context(), c, "f", bytes.NewReader(data)); err != nil || n != int64(len(data)) {
					t.Fatalf("put: %d bytes of %d, %v", n, len(data), err)
				}
				var got bytes.Buffer
				if err := get(t.Context(), c, "f", &got); err != nil || !bytes.Equal(got.Bytes(), data) {
					t.Errorf("get: %d bytes of %d, %v", got.Len(), len(data), err)
				}
			}
			if _, err := put(t.Context(), c, "../f", bytes.NewReader(data)); status.Code(err) != codes.InvalidArgument {
				t.Errorf("a name that leads out of the directory: %v", err)
			}
			if err := get(t.Context(), c, "none", new(bytes.Buffer)); status.Code(err) != codes.NotFound {
				t.Errorf("a file that is not there: %v", err)
			}
		})
	}
}
