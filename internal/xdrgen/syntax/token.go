package syntax

import "strconv"

// tokenKind is the kind of a token. Punctuation is its own character.
type tokenKind int

const (
	tokEOF tokenKind = -1 - iota
	tokIdent
	tokKeyword
	tokNumber
	tokString // quoted, for extensions of other compilers
)

// token is a word of the language with its comments.
type token struct {
	Pos
	kind tokenKind
	text string
	num  Int // of a number

	before []Comment // directly before it, without an empty line in between
	after  []Comment // after it, the last on its line
}

// String returns the token's name for errors.
func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "end of file"
	case tokKeyword:
		return "keyword " + t.text
	case tokIdent, tokNumber:
		return t.text
	}
	return strconv.Quote(t.text)
}

// keywords are those of RFC 4506 section 6.2. Immutable. The words program and version of RFC 5531 section 12.3 are
// omitted, because published files have members with those names.
var keywords = map[string]bool{
	"bool": true, "case": true, "const": true, "default": true, "double": true, "enum": true,
	"float": true, "hyper": true, "int": true, "opaque": true, "quadruple": true, "string": true,
	"struct": true, "switch": true, "typedef": true, "union": true, "unsigned": true, "void": true,
}
