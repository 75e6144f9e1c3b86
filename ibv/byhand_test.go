//go:build linux && cgo

package ibv

import (
	"errors"
	"syscall"
	"testing"
)

// TestQPAddr: an address is written as ibv_rc_pingpong sends it, and read from nothing else.
func TestQPAddr(t *testing.T) {
	a := QPAddr{LID: 0x1a, QPNum: 0x12, PSN: 0xabcdef, GID: GID{10: 0xff, 0xff, 10, 9, 9, 1}}
	const text = "001a:000012:abcdef:00000000000000000000ffff0a090901"
	if got, err := a.MarshalText(); err != nil || string(got) != text {
		t.Errorf("%s, %v, want %s", got, err, text)
	}
	var b QPAddr
	if err := b.UnmarshalText([]byte(text)); err != nil || b != a {
		t.Errorf("%+v, %v", b, err)
	}
	for _, wrong := range []string{
		"", text[1:], text + "0", "001a:000012:abcdef-00000000000000000000ffff0a090901", "001g" + text[4:], text[:50] + "x", "001a:+00012" + text[11:],
	} {
		b = a
		if err := b.UnmarshalText([]byte(wrong)); err == nil || b != a {
			t.Errorf("%q is %+v", wrong, b)
		}
	}
}

// TestFakeConnectTo: an address that the port does not have is an error before the queue pair changes.
func TestFakeConnectTo(t *testing.T) {
	s := newSet(t)
	row := 7
	s.lib.Calls()
	var e *Error
	if err := s.qp.ConnectTo(QPAddr{}, QPAddr{}, PathAttr{GIDIndex: &row}); !errors.As(err, &e) || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("row 7: %v", err)
	}
	s.lib.Fail("ibv_query_port", syscall.EIO)
	if _, err := s.qp.Addr(PathAttr{}, 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("a port that cannot be asked: %v", err)
	}
	if calls := s.lib.Calls(); len(calls) > 0 {
		t.Errorf("the calls are %q", calls)
	}
	s.lib.Fail("ibv_modify_qp", 0, syscall.EINVAL)
	var m *ModifyError
	if err := s.qp.ConnectTo(QPAddr{}, QPAddr{}, PathAttr{}); !errors.As(err, &m) {
		t.Errorf("the second step fails: %v", err)
	}
	local, err := s.qp.Addr(PathAttr{}, 1<<24+5)
	if err != nil || local.QPNum != s.qp.Num() || local.PSN != 5 || local.GID != (GID{}) {
		t.Errorf("%+v, %v", local, err)
	}
	if err := s.qp.ConnectTo(local, local, PathAttr{}); err != nil {
		t.Error(err)
	}
}
