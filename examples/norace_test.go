//go:build !race

package examples

const race = false
