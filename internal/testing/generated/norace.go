//go:build !race

package generated

const raceEnabled = false
