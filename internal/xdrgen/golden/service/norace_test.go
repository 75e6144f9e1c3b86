//go:build generated && !race

package service

const raceEnabled = false
