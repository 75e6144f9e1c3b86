package dump_test

import (
	"fmt"
	"log"
	"strings"

	"github.com/rpcrdma/rpcrdma/proto/dump"
)

// A call of NFS in version 1 of RPC-over-RDMA, as other programs print it.
func Example() {
	text := `00000000  5e ed 00 03 00 00 00 01  00 00 00 20 00 00 00 00
00000010  00 00 00 00 00 00 00 00  00 00 00 00 5e ed 00 03
00000020  00 00 00 00 00 00 00 02  00 01 86 a3 00 00 00 03
00000030  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
00000040  00 00 00 00`
	messages, err := dump.ReadHex(strings.NewReader(text), "text")
	if err != nil {
		log.Fatal(err)
	}
	var d dump.Decoder
	for _, b := range messages {
		fmt.Println(d.Decode(b))
	}
	// Output:
	// message 1, 68 bytes
	//   xid            0x5eed0003
	//   version        1
	//   credits        32 asked for
	//   type           RDMA_MSG
	//   read list      none
	//   write list     none
	//   reply chunk    none
	//   RPC call       at byte 28
	//     xid          0x5eed0003
	//     rpc version  2
	//     program      100003 NFS
	//     version      3
	//     procedure    0 NULL
	//     credential   AUTH_NONE
	//     verifier     AUTH_NONE
	//     arguments    none here
}
