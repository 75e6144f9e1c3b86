package rping

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// Texts as rping 44.0 has printed them with -v, for sizes 64 and 30.
func TestPutText(t *testing.T) {
	for _, want := range []struct {
		ping int
		text string
	}{
		{0, "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\x00"},
		{1, "rdma-ping-1: BCDEFGHIJKLMNOPQ\x00"},
		{2, "rdma-ping-2: CDEFGHIJKLMNOPQR\x00"},
		{57, "rdma-ping-57: zABCDEFGHIJKLMN\x00"},
		{58, "rdma-ping-58: ABCDEFGHIJKLMNO\x00"},
		{1<<31 - 1, "rdma-ping-2147483647: \x00"},
	} {
		got := make([]byte, len(want.text))
		PutText(got, want.ping)
		if string(got) != want.text {
			t.Errorf("ping %d is %q, want %q", want.ping, got, want.text)
		}
	}
	// For any size the last byte is zero and no other.
	for size := range 200 {
		b := bytes.Repeat([]byte{0xff}, size)
		PutText(b, size*7)
		if at := bytes.IndexByte(b, 0); at != size-1 {
			t.Errorf("text of %d bytes: the first zero is at %d", size, at)
		}
	}
	if n := len(fmt.Sprintf("rdma-ping-%d: ", int32(1<<31-1))) + 1; n != MinSize {
		t.Errorf("MinSize is %d, and the longest number needs %d", MinSize, n)
	}
}

func TestMessage(t *testing.T) {
	seg := fabric.Segment{Handle: 0x01020304, Length: 0x05060708, Offset: 0x1112131415161718}
	b := make([]byte, messageLen)
	putMessage(b, seg)
	if want := []byte("\x11\x12\x13\x14\x15\x16\x17\x18\x01\x02\x03\x04\x05\x06\x07\x08"); !bytes.Equal(b, want) {
		t.Errorf("message is %x, want %x", b, want)
	}
	if got, err := parseMessage(b); got != seg || err != nil {
		t.Errorf("parsed %+v, %v", got, err)
	}
	for _, n := range []int{0, messageLen - 1} {
		var pe *PeerError
		if _, err := parseMessage(b[:n]); !errors.As(err, &pe) {
			t.Errorf("a message of %d bytes: %v, want a *PeerError", n, err)
		}
	}
}
