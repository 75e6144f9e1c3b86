package serving

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
)

// maxExportsFile bounds an exports file in bytes.
const maxExportsFile = 1 << 20

// spaces may be around what a line of an exports file says.
const spaces = " \t\r\v\f"

// An exportsError is an error in an exports file.
type exportsError struct {
	where string // FILE:LINE, or the file as a whole
	err   error
}

func (e *exportsError) Error() string { return e.where + ": " + e.err.Error() }

func (e *exportsError) Unwrap() error { return e.err }

func (e *exportsError) Explain() string { return e.where + ": " + explain.Text(e.err) }

// readExports reads an exports file: exports in the form of --export, one to a line, with absolute
// paths. Empty lines, and what follows a "#" at the start of a line or after a space, are
// comments.
func readExports(name string) ([]exportSpec, error) {
	whole := func(err error) ([]exportSpec, error) { return nil, &exportsError{explain.Printable(name), err} }
	f, err := os.Open(name)
	if err != nil {
		return whole(cause(err))
	}
	defer f.Close()
	var list []exportSpec
	in := &io.LimitedReader{R: f, N: maxExportsFile + 1}
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		text := strings.Trim(withoutComment(lines.Text()), spaces)
		if text == "" {
			continue
		}
		e, err := parseLine(text)
		e.line = fmt.Sprintf("%s:%d", explain.Printable(name), n)
		if err != nil {
			return nil, e.failed(err)
		}
		list = append(list, e)
	}
	switch err := lines.Err(); {
	case in.N == 0:
		return whole(fmt.Errorf("the file is larger than %d bytes", maxExportsFile))
	case errors.Is(err, bufio.ErrTooLong):
		return whole(fmt.Errorf("a line is longer than %d bytes", bufio.MaxScanTokenSize))
	case err != nil:
		return whole(cause(err))
	case len(list) == 0:
		return whole(errors.New("no exports: want DIR[=/NAME][,OPTION...], one to a line"))
	}
	return list, nil
}

// cause is an error without the name of the file, which is said already.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// withoutComment returns a line as far as it is not a comment.
func withoutComment(line string) string {
	space := true
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '#' && space:
			return line[:i]
		case c == '\\':
			i++
			space = false
		default:
			space = strings.IndexByte(spaces, c) >= 0
		}
	}
	return line
}

// parseLine reads a line that is not empty.
func parseLine(text string) (exportSpec, error) {
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' {
			i++
		} else if strings.IndexByte(spaces, text[i]) >= 0 {
			return exportSpec{}, errors.New(`want DIR[=/NAME][,OPTION...] without spaces, such as /srv/data=/data,ro; "\ " is a space in a name`)
		}
	}
	e, err := parseExport(text)
	if err == nil && !filepath.IsAbs(e.dir) {
		err = fmt.Errorf("want the whole path of a directory, not %q", e.dir)
	}
	return e, err
}
