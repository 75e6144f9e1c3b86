//go:build race

package gen_test

// raceEnabled: the type checker then takes ten times as long, and has no goroutines.
const raceEnabled = true
