// Gen regenerates docs/reports/conformance.md, and removes rules that have a test from the list of
// open rules.
//
//	gen [ROOT]
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rpcrdma/rpcrdma/internal/conformance"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := run(root); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	c, err := conformance.Ours()
	if err != nil {
		return err
	}
	s, err := conformance.Scan(os.DirFS(root), c)
	if err != nil {
		return err
	}
	for _, id := range c.Settle(s) {
		fmt.Println(id, "is not open any more")
	}
	if err := os.WriteFile(filepath.Join(root, conformance.OpenPath), []byte(c.OpenText()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, conformance.DocumentPath), []byte(conformance.Document(c, s)), 0o644)
}
