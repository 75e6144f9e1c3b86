package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestTCP: what goes over a recorded TCP connection is in the file, in both framings, in its order and
// with its sequence numbers.
func TestTCP(t *testing.T) {
	for _, framing := range []Framing{IWARP, RoCE} {
		var b bytes.Buffer
		w := New(&b, &Config{Framing: framing})
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		l := w.Listener(plain)
		client, err := net.Dial("tcp", l.Addr().String())
		testutil.Must(t, err)
		server, err := l.Accept()
		testutil.Must(t, err)
		long := bytes.Repeat([]byte("long"), 30_000) // two segments
		sent := make(chan error, 1)
		go func() {
			_, err := client.Write([]byte("call"))
			sent <- errors.Join(err, client.(*net.TCPConn).CloseWrite())
		}()
		got, err := io.ReadAll(server)
		testutil.Must(t, err, <-sent)
		go func() {
			_, err := server.Write(long)
			sent <- errors.Join(err, server.(closeWriter).CloseWrite())
		}()
		answer, err := io.ReadAll(client)
		testutil.Must(t, err, <-sent, server.Close(), client.Close(), l.Close(), w.Close())
		if string(got) != "call" || !bytes.Equal(answer, long) {
			t.Fatalf("%q and %d bytes went over the connection", got, len(answer))
		}

		streams := map[byte][]byte{} // by the last byte of the sender's address
		first := map[byte]uint32{}
		for _, p := range packets(blocks(t, b.Bytes())) {
			tcp := p.data[etherLen+ipv4Len:]
			from, seq, data := p.data[11], binary.BigEndian.Uint32(tcp[4:]), tcp[tcpLen:]
			if tcp[13]&tcpSYN != 0 {
				first[from] = seq + 1
				continue
			}
			if at := seq - first[from]; len(data) > 0 && int(at) != len(streams[from]) {
				t.Fatalf("%v: a segment is at %d, want %d", framing, at, len(streams[from]))
			}
			streams[from] = append(streams[from], data...)
		}
		if !bytes.Equal(streams[1], long) || string(streams[2]) != "call" {
			t.Errorf("%v: %d and %d bytes are in the file", framing, len(streams[1]), len(streams[2]))
		}
	}
}
