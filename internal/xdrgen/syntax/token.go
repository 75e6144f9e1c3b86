package syntax

import "strconv"

// tokenKind is the kind of a token. Punctuation is its own character.
type tokenKind int

const (
	tokEOF tokenKind = -1 - iota
	tokIdent
	tokKeyword
	tokNumber
	tokString // in quotes, for extensions of other compilers
)

// token is a word of the language with the comments that belong to it.
type token struct {
	Pos
	kind tokenKind
	text string
	num  Int // of a number

	before []Comment // directly in front of it, without an empty line between
	after  []Comment // after it, as the last on its line
}

// String is how errors name the token.
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

// keywords of RFC 4506 section 6.2. Immutable. The words program and version of RFC 5531 section 12.3
// are left out: published files have members with those names.
var keywords = map[string]bool{
	"bool": true, "case": true, "const": true, "default": true, "double": true, "enum": true,
	"float": true, "hyper": true, "int": true, "opaque": true, "quadruple": true, "string": true,
	"struct": true, "switch": true, "typedef": true, "union": true, "unsigned": true, "void": true,
}
