// Package testutil has helpers that the tests of many packages share: checks that end a test at the first error,
// conditions that become true, trees of files, golden files and vectors. It depends only on the standard library.
package testutil

import (
	"encoding/hex"
	"strings"
	"testing"
)

// Hex decodes hexadecimal digits, for golden vectors. White space is ignored. Anything else
// ends the test.
func Hex(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
	if err != nil {
		t.Fatalf("bad golden vector: %v", err)
	}
	return b
}
