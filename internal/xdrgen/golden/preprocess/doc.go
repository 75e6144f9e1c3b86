// Package preprocess is package golden for lines of the preprocessor.
package preprocess

//go:generate go run ../../../../cmd/xdrgen -D GOLDEN -I .. preprocess.x
