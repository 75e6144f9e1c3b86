//go:build race

package grpcrdma_test

const raceEnabled = true
