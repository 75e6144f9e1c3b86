//go:build !linux || !cgo

package selftest

func (s *session) identify() error { return nil }

// verbsChecks returns nothing, because the checks need package ibv.
func (s *session) verbsChecks() []check { return nil }
