package mpa_test

import (
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

// The initiator's first frame of a connection, and an FPDU after it.
func Example() {
	data := []byte("private data")
	b := mpa.AppendStart(nil, &mpa.Start{Kind: mpa.Request, Flags: mpa.FlagCRC, Revision: 1, PDLength: len(data)})
	b = append(b, data...)
	b = mpa.AppendFPDU(b, []byte("a DDP segment"), true)

	var start mpa.Start
	n, err := mpa.ConsumeStart(b, &start)
	if err != nil {
		log.Fatal(err)
	}
	b = b[n:]
	fmt.Printf("%v, %v, %q\n", start.Kind, start.Flags, b[:start.PDLength])
	ulpdu, n, err := mpa.ConsumeFPDU(b[start.PDLength:], start.Flags&mpa.FlagCRC != 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q in %d bytes\n", ulpdu, n)
	// Output:
	// MPA Request Frame, C, "private data"
	// "a DDP segment" in 20 bytes
}
