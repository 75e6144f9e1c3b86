package serving

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
)

// maxExportsFile limits an exports file, and files that map users, in bytes.
const maxExportsFile = 1 << 20

// spaces are trimmed from the lines of an exports file.
const spaces = " \t\r\v\f"

// exportsError is an error in an exports file, or in a file that maps users.
type exportsError struct {
	where string // FILE:LINE, or the file
	err   error
}

func (e *exportsError) Error() string { return e.where + ": " + e.err.Error() }

func (e *exportsError) Unwrap() error { return e.err }

func (e *exportsError) Explain() string { return e.where + ": " + explain.Text(e.err) }

// optionLine is a line of an exports file that sets an option of the command.
type optionLine struct {
	name, value string
	where       string // FILE:LINE
}

// readExports reads an exports file. It has one export per line in the form of --export, with absolute paths, and
// options of the command. Empty lines are ignored, and so is what follows a "#" at the start of a line or after a
// space.
func readExports(name string) (list []exportSpec, options []optionLine, err error) {
	err = eachLine(name, func(where, text string) error {
		if option, ok := strings.CutPrefix(text, "--"); ok {
			o := optionLine{name: option, where: where}
			if at := strings.IndexAny(option, "= \t"); at >= 0 {
				o.name, o.value = option[:at], strings.Trim(option[at+1:], spaces)
			}
			options = append(options, o)
			return nil
		}
		e, err := parseLine(text)
		e.line = where
		list = append(list, e)
		return err
	})
	if err == nil && len(list) == 0 {
		err = &exportsError{explain.Printable(name), errors.New("no exports: want DIR[=/NAME][,OPTION...], one to a line")}
	}
	if err != nil {
		return nil, nil, err
	}
	return list, options, nil
}

// eachLine calls f for each line of a file that is not just a comment, without the comment, and with FILE:LINE, until f
// fails. Its error is an *exportsError.
func eachLine(name string, f func(where, line string) error) error {
	shown := explain.Printable(name)
	file, err := os.Open(name)
	if err != nil {
		return &exportsError{shown, cause(err)}
	}
	defer file.Close()
	in := &io.LimitedReader{R: file, N: maxExportsFile + 1}
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		line := strings.Trim(withoutComment(lines.Text()), spaces)
		if line == "" {
			continue
		}
		where := fmt.Sprintf("%s:%d", shown, n)
		if err := f(where, line); err != nil {
			return &exportsError{where, err}
		}
	}
	_, _ = io.Copy(io.Discard, in) // skip the rest of a line that is too long
	switch err := lines.Err(); {
	case in.N == 0:
		return &exportsError{shown, fmt.Errorf("the file is larger than %d bytes", maxExportsFile)}
	case errors.Is(err, bufio.ErrTooLong):
		return &exportsError{shown, fmt.Errorf("a line is longer than %d bytes", bufio.MaxScanTokenSize)}
	case err != nil:
		return &exportsError{shown, cause(err)}
	}
	return nil
}

// setOptions sets flags according to the exports file, unless the command line sets them. It is called once: options do
// not change while the server runs.
func (o *exportFlags) setOptions(flags *pflag.FlagSet, options []optionLine) error {
	o.options = options
	given := make(map[string]bool)
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, option := range options {
		f := flags.Lookup(option.name)
		switch {
		case f == nil || option.name == "help":
			return &exportsError{option.where, fmt.Errorf("'rpcrdma serve' has no option --%s", explain.Printable(option.name))}
		case option.name == "exports" || option.name == "export" || option.name == "dir":
			return &exportsError{option.where, fmt.Errorf("--%s is for the command line: a line here is DIR[=/NAME][,OPTION...]", option.name)}
		case option.value == "" && f.NoOptDefVal != "":
			option.value = f.NoOptDefVal
		case option.value == "":
			return &exportsError{option.where, fmt.Errorf("--%s needs a value", option.name)}
		}
		if given[option.name] {
			continue
		}
		if err := flags.Set(option.name, option.value); err != nil {
			return &exportsError{option.where, err}
		}
	}
	return nil
}

// changed reports whether the file has other options than when the server started.
func (o *exportFlags) changed(options []optionLine) bool {
	return !slices.EqualFunc(options, o.options, func(a, b optionLine) bool { return a.name == b.name && a.value == b.value })
}

// cause returns an error without the file name, which is already part of the message.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// withoutComment returns a line without its comment.
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

// parseLine parses a line that is not empty.
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
