//go:build generated && race

package service

// raceEnabled: pools then forget what they are given, at random.
const raceEnabled = true
