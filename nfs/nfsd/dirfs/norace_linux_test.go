//go:build !race

package dirfs

const raceDetector = false
