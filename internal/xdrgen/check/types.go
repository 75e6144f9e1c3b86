package check

import (
	"math"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// A Spec is what a set of .x files declares.
type Spec struct {
	Names    []string // of the files
	Consts   []*Const
	Types    []*Type // that have names, and bodies within them behind them; in source order
	Programs []*Program
}

// A Const is a constant, without those of enumerations.
type Const struct {
	syntax.Ident
	Value  syntax.Int
	Text   string // if IsText
	IsText bool
	Doc    syntax.Comments
}

// A Kind says which fields of a [Type] are in use.
type Kind int

// The kinds of types.
const (
	Int32 Kind = iota
	Uint32
	Hyper
	Uhyper
	Float
	Double
	Quadruple
	Bool
	String   // Len
	Opaque   // Fixed, Len
	Array    // Elem, Fixed, Len
	Optional // Elem
	List     // Elem: a linked list
	Enum     // Values, Open
	Struct   // Members, Link
	Union    // Discriminant, Arms
	Typedef  // Elem: the type that Name is another name of
)

// Unbounded is the Max of a type whose encoding has no limit.
const Unbounded = math.MaxInt64

// A Type is a type with or without a name.
type Type struct {
	syntax.Pos
	Kind Kind
	Name string // of a type in Spec.Types
	Doc  syntax.Comments

	// Within is the declaration that has the body of the type, a typedef or a member such as
	// outer.inner: Name is made up of that. It is "" for a type that the source names.
	Within string

	Elem  *Type
	Fixed bool
	Len   uint32 // the length if Fixed, or else the maximum
	LenOf string // the name of the constant that is Len; "" for a number

	Values []*Enumerator
	Open   bool // other values are kept, too

	Members []*Member
	Link    string // the member of a linked list's element that is no longer in Members

	Discriminant *Member
	Arms         []*Arm // without those that no value selects

	// Min and Max are the sizes of the shortest and the longest encoding in bytes.
	Min, Max int64

	// Recursive: a value may contain one of the same type.
	Recursive bool

	base   *Type // of a Typedef
	memory int64 // rough size of a value in memory, without what pointers refer to
}

// Chained reports whether the last member of a structure is a pointer to the structure. Such a
// chain may be long: code follows it in a loop. The chains of a [List] are slices instead.
func (t *Type) Chained() bool {
	if t.Kind != Struct || len(t.Members) == 0 {
		return false
	}
	last := t.Members[len(t.Members)-1].Type.Base()
	return last.Kind == Optional && last.Elem.Base() == t
}

// Base returns the type that a name stands for, through any number of typedefs.
func (t *Type) Base() *Type {
	if t.Kind != Typedef {
		return t
	}
	return t.base
}

// An Enumerator is a constant of an enumeration.
type Enumerator struct {
	syntax.Ident
	Value syntax.Int // in the range of an int32
	Doc   syntax.Comments
}

// A Member is one of a structure, or of an arm, or a parameter.
type Member struct {
	syntax.Pos
	Name string // "" for most parameters
	Type *Type
	Doc  syntax.Comments
}

// An Arm is one arm of a union.
type Arm struct {
	syntax.Pos
	Labels  []Label
	Default bool    // all values that have no other arm
	Member  *Member // nil: void
	Pointer bool    // the member contains the union
	Doc     syntax.Comments
}

// A Label is a value of the discriminant.
type Label struct {
	Value syntax.Int
	Name  string      // as in the source; "" for a number
	Enum  *Enumerator // of the discriminant's type; nil if that has none of this value
}

// A Program is a remote program.
type Program struct {
	syntax.Ident
	Number   uint32
	Versions []*Version
	Doc      syntax.Comments
}

// A Version is one version of a program.
type Version struct {
	syntax.Ident
	Number uint32
	Procs  []*Proc
	Doc    syntax.Comments
}

// A Proc is a procedure.
type Proc struct {
	syntax.Ident
	Number uint32
	Args   []*Member // none: void
	Result *Type     // nil: void
	Doc    syntax.Comments
}
