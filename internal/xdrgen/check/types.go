package check

import (
	"math"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// A Spec holds the declarations of a set of .x files.
type Spec struct {
	Names    []string // of the files
	Consts   []*Const
	Types    []*Type // types with names, each before the bodies within it; in source order
	Programs []*Program
}

// A Const is a constant other than those of enumerations.
type Const struct {
	syntax.Ident
	Value  syntax.Int
	Text   string // if IsText
	IsText bool
	Go     string // name requested by the source, or ""
	Doc    syntax.Comments
}

// A Kind selects the fields of a [Type] that are in use.
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
	Enum     // Values, Open, Scoped
	Struct   // Members, Link
	Union    // Discriminant, Arms
	Typedef  // Elem: the type that Name is another name of
)

// Unbounded is the Max of a type with an unlimited encoding.
const Unbounded = math.MaxInt64

// A Type is a type with or without a name.
type Type struct {
	syntax.Pos
	Kind Kind
	Name string // set for types in Spec.Types
	Go   string // as in Const
	Doc  syntax.Comments

	// Within is the declaration that contains the body of the type, a typedef or a member such as outer.inner: Name is
	// derived from it. It is "" for a type named by the source.
	Within string

	Elem  *Type
	Fixed bool
	Len   uint32 // length if Fixed, otherwise the maximum
	LenOf string // name of the constant with the value Len; "" for a number

	// Extern means that Go has a hand-written type and methods.
	Extern bool

	// OnlyFlat means that it occurs only in flat members, which have no values of the type.
	OnlyFlat bool

	// Head has the items that methods AppendHead and DecodeHead omit; nil if there are no such methods.
	Head *Proc

	// Distinct is set for a Typedef of a number, a bool or a string that is a distinct Go type.
	Distinct bool

	Values []*Enumerator
	Open   bool // other values are kept
	Scoped bool // the names of the values are scoped to the enumeration

	Members []*Member
	Link    string // the member of a linked list's element that was removed from Members

	ddp *ddp // annotation of a Typedef

	Discriminant *Member
	Arms         []*Arm // without those that no value selects

	// Min and Max are the sizes of the shortest and the longest encoding in bytes.
	Min, Max int64

	// Recursive means that a value may contain one of the same type.
	Recursive bool

	base   *Type // of a Typedef
	memory int64 // approximate size of a value in memory, without what pointers refer to
}

// Chained reports whether the last member of a structure is a pointer to the structure. Such a chain may be long:
// generated code follows it in a loop. The chains of a [List] are slices instead.
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
	Go    string     // as in Const
	Doc   syntax.Comments
}

// A Member is a member of a structure or an arm, or a parameter.
type Member struct {
	syntax.Pos
	Name string // "" for most parameters
	Go   string // as in Const
	Type *Type
	Doc  syntax.Comments
	Flat bool // its type's fields become fields of the enclosing type

	ddp *ddp // its own annotation or that of its type
}

// An Arm is one arm of a union.
type Arm struct {
	syntax.Pos
	Labels  []Label
	Default bool    // for all values without another arm
	Member  *Member // nil: void
	Pointer bool    // the member contains the union
	Doc     syntax.Comments
}

// A Label is a value of the discriminant that selects an arm.
type Label struct {
	Value syntax.Int
	Name  string      // as in the source; "" for a number
	Enum  *Enumerator // of the discriminant's type; nil if none exists for this value
}

// A Program is a remote program.
type Program struct {
	syntax.Ident
	Number   uint32
	Versions []*Version
	Go       string // as in Const
	Doc      syntax.Comments
}

// A Version is one version of a program.
type Version struct {
	syntax.Ident
	Number uint32
	Procs  []*Proc
	Go     string // as in Const
	Doc    syntax.Comments
	Lax    bool // clients and servers ignore pad bytes; set by Stubs

	Independent bool // handlers do not wait for other calls of their client; set by Stubs
	Wrapped     bool // client and binding are not exported; set by Stubs
}

// A Proc is a procedure.
type Proc struct {
	syntax.Ident
	Number uint32
	Args   []*Member // empty: void
	Go     string    // as in Const
	Doc    syntax.Comments

	// Returned is the result, named after its type or "result"; nil: void.
	Returned *Member

	// Streamed is the former Returned of a procedure that streams its results; set by Stubs.
	Streamed *Member

	// Results of [Stubs].

	Idempotent, Inline bool

	// Items holds what may be placed directly: arguments, the result, and members within these. Around holds the types
	// with names that contain items.
	Items  map[*Member]bool
	Around map[*Type]bool

	// Sent lists the items of the arguments, in the order of the stream.
	Sent []*Member

	// Received lists the items of the results, in the order of the stream. Each result has the same items, from the
	// first one on.
	Received []Received

	// Bound is the largest size of the encoded results, without the data of Received.
	Bound Bound

	// Longest is the longest encoding of the arguments or of the results. Parts without a limit count as empty.
	Longest int64
}

// A Received is an item of the results.
type Received struct {
	Member *Member
	Bound  Bound // of its data, with padding
}

// A Bound is a number of bytes that may depend on the arguments: the sum of Bytes and of the largest integer, in the
// arguments, of each of Counts.
type Bound struct {
	Bytes  int64
	Counts [][]Path
}

// A Path leads to an integer in the arguments: a parameter, and members within it.
type Path []*Member
