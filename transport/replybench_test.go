package transport

import (
	"fmt"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// BenchmarkReplyCache measures what the reply cache adds to a call that is not idempotent, by the
// length of its arguments; its results have a hundred bytes, and the cache is full.
func BenchmarkReplyCache(b *testing.B) {
	for _, size := range []int{16, 4096, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			_, cfg, err := (&Settings{ReplyCache: ReplyCache{Entries: 100}}).Server().settle()
			if err != nil {
				b.Fatal(err)
			}
			c, _ := newConn(peerConn{newPeer(nil)}, "script", cfg, roleServer, nil)
			r := newRegistry(cfg)
			x := newExchange(c, 0)
			c.reg = r
			x.call = oncrpc.CallHeader{Prog: testProg, Vers: 1, Proc: 1}
			x.msg = appendCall(nil, 1, 1, make([]byte, size)...)
			rpc, results := make([]byte, 24), make([]byte, 100)
			b.ReportAllocs()
			for b.Loop() {
				x.call.XID++
				if x.recall() {
					b.Fatal("a call that is new has been answered")
				}
				x.remember(rpc, results)
			}
		})
	}
}
