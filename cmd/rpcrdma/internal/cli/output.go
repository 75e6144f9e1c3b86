package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
)

// NewJSON returns an encoder of which a terminal executes nothing. All JSON that is printed comes from
// one, or from PlainJSON.
func NewJSON(w io.Writer) *json.Encoder { return json.NewEncoder(jsonWriter{w}) }

// PrintJSON prints v, indented.
func PrintJSON(w io.Writer, v any) error {
	e := NewJSON(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// PlainOutput returns a writer of JSON of which a terminal executes nothing.
func PlainOutput(w io.Writer) io.Writer { return jsonWriter{w} }

// A jsonWriter writes what PlainJSON makes of JSON. Each Write gets whole characters.
type jsonWriter struct{ io.Writer }

func (w jsonWriter) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(PlainJSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// PlainJSON returns JSON with escapes for the characters that printable escapes, too: encoding/json
// leaves DEL, the controls of U+0080 to U+009F and those of bidirectional text in strings, and there is
// nothing else that has them.
func PlainJSON(text []byte) []byte {
	plain := text[:0:0]
	done := 0
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r >= 0x7f && !strconv.IsPrint(r) {
			plain = append(plain, text[done:i]...)
			for _, u := range utf16.AppendRune(nil, r) {
				plain = fmt.Appendf(plain, `\u%04x`, u)
			}
			done = i + n
		}
		i += n
	}
	if done == 0 {
		return text
	}
	return append(plain, text[done:]...)
}

// PrintError reports an error for which the exit status is as given.
func PrintError(stderr io.Writer, asJSON bool, err error, status int) {
	if asJSON {
		_ = NewJSON(stderr).Encode(ErrorJSON{err.Error(), status}) // there is no other place to report to
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %v\n", err)
}

// ErrorJSON is the error of a command, as --json prints it to standard error.
type ErrorJSON struct {
	Error  string `json:"error"`  // as text for people
	Status int    `json:"status"` // the exit status
}

// SkippedJSON is something that was skipped, as --json prints it to standard error.
type SkippedJSON struct {
	Skipped string `json:"skipped"` // the path
	Reason  string `json:"reason"`  // as text for people
}

// PrintSkipped reports that the work called name has skipped path.
func PrintSkipped(stderr io.Writer, asJSON bool, name, path, why string) {
	if asJSON {
		_ = NewJSON(stderr).Encode(SkippedJSON{path, why})
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %s: %s skipped: %s\n", name, cmp.Or(explain.Printable(path), `""`), why)
}

// ErrReported is a failure that has been reported already.
var ErrReported = errors.New("failed, as reported")

// Things returns "1 thing was" or "2 things were".
func Things(n int) string {
	if n == 1 {
		return "1 thing was"
	}
	return fmt.Sprintf("%d things were", n)
}
