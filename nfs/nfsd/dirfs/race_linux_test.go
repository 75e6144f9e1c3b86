//go:build race

package dirfs

const raceDetector = true
