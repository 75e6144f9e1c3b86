package main

import (
	"io/fs"
	"strings"

	"github.com/rpcrdma/rpcrdma/notify"
)

// watched is the directories of all exports as one notify.Source: paths begin with the name of
// an export, as in URLs. It does not change.
type watched []watchedExport

type watchedExport struct {
	name   string // without the slashes around it
	source notify.Source
}

// Watch tells of changes in a directory of the export that it is in.
func (w watched) Watch(dir string, recursive bool, tell func(notify.Event)) (stop func(), err error) {
	var found *watchedExport
	rest := ""
	for i := range w {
		e := &w[i]
		below, ok := strings.CutPrefix(strings.TrimLeft(dir, "/"), e.name)
		if ok && (e.name == "" || below == "" || below[0] == '/') && (found == nil || len(e.name) > len(found.name)) {
			found, rest = e, strings.TrimLeft(below, "/")
		}
	}
	if found == nil {
		return nil, fs.ErrNotExist
	}
	return found.source.Watch(rest, recursive, tell)
}
