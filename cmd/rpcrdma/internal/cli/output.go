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

// NewJSON returns an encoder that prints nothing that a terminal would interpret. All JSON output goes through it or
// PlainJSON.
func NewJSON(w io.Writer) *json.Encoder { return json.NewEncoder(jsonWriter{w}) }

// PrintJSON prints v, indented.
func PrintJSON(w io.Writer, v any) error {
	e := NewJSON(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// PlainOutput returns a writer for JSON that escapes everything that a terminal would interpret.
func PlainOutput(w io.Writer) io.Writer { return jsonWriter{w} }

// jsonWriter writes JSON after PlainJSON. Each Write must get whole characters.
type jsonWriter struct{ io.Writer }

func (w jsonWriter) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(PlainJSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// PlainJSON returns JSON in which the characters that Printable escapes are escaped. encoding/json leaves DEL, the
// controls U+0080 to U+009F and those of bidirectional text in strings. They cannot occur elsewhere in JSON.
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

// PrintError reports an error that leads to this exit status.
func PrintError(stderr io.Writer, asJSON bool, err error, status int) {
	if asJSON {
		_ = NewJSON(stderr).Encode(ErrorJSON{err.Error(), status}) // there is nowhere else to report an error
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %v\n", err)
}

// ErrorJSON is the error of a command, as --json prints it to standard error.
type ErrorJSON struct {
	Error  string `json:"error"`  // text for people
	Status int    `json:"status"` // exit status
}

// SkippedJSON is something that was skipped, as --json prints it to standard error.
type SkippedJSON struct {
	Skipped string `json:"skipped"` // path
	Reason  string `json:"reason"`  // text for people
}

// PrintSkipped reports that the command called name has skipped path.
func PrintSkipped(stderr io.Writer, asJSON bool, name, path, why string) {
	if asJSON {
		_ = NewJSON(stderr).Encode(SkippedJSON{path, why})
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %s: %s skipped: %s\n", name, cmp.Or(explain.Printable(path), `""`), why)
}

// ErrReported is the error of a failure that has already been reported.
var ErrReported = errors.New("failed, as reported")

// Things returns "1 thing was" or "2 things were".
func Things(n int) string {
	if n == 1 {
		return "1 thing was"
	}
	return fmt.Sprintf("%d things were", n)
}
