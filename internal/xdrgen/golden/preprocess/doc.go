// Package preprocess is like package golden, for preprocessor lines.
package preprocess

//go:generate go run ../../../../cmd/xdrgen -D GOLDEN -I .. preprocess.x
