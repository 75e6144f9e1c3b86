//go:build race

package generated

const raceEnabled = true
