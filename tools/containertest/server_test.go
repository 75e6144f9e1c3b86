//go:build linux

package main

import (
	"strings"
	"testing"
)

// client is an engine with a client that says that it sent abc, and a server that has stored $1.
func client(stored string) string {
	return `case "$*" in
*mark-client*) echo "SHA-256 of their sums is abc" ;;
*sha256sum*) echo ` + stored + ` ;;
esac`
}

func TestCopies(t *testing.T) {
	s := fakeStep(t, client("abc"))
	if err := copiesWhole(s); err != nil {
		t.Errorf("equal sums: %v", err)
	}
	if err := noticesDamage(s); err == nil {
		t.Error("damage that changes no sum is noticed")
	}
	s = fakeStep(t, client("def"))
	if err := copiesWhole(s); err == nil {
		t.Error("other sums count as equal")
	}
	if err := noticesDamage(s); err != nil {
		t.Errorf("damage: %v", err)
	}
	if err := noticesDamage(fakeStep(t, client("def"))); err == nil {
		t.Error("nothing was sent, and damage is noticed")
	}
	if err := copiesWhole(fakeStep(t, "")); err == nil || !strings.Contains(err.Error(), "printed no sum") {
		t.Errorf("a client that prints nothing: %v", err)
	}
}

func TestConfinedStatus(t *testing.T) {
	const good = "Name:\trpcrdma\nUid:\t65532\t65532\t65532\t65532\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n" +
		"CapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	if err := confinedStatus(good); err != nil {
		t.Errorf("%v", err)
	}
	for _, change := range [][2]string{
		{"CapEff:\t0000000000000000", "CapEff:\t0000000000000400"},
		{"CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb"},
		{"NoNewPrivs:\t1", "NoNewPrivs:\t0"},
		{"Uid:\t65532", "Uid:\t0"},
		{good, ""},
	} {
		if err := confinedStatus(strings.Replace(good, change[0], change[1], 1)); err == nil {
			t.Errorf("%s is confined", change[1])
		}
	}
}
