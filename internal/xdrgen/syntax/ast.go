package syntax

// A File is the syntax tree of all sources of one compilation.
type File struct {
	Names []string // of the sources, without included ones
	Decls []Decl   // in the order of the sources
	Notes []Note
}

// A Decl is a definition: [*Const], [*TypeDef] or [*Program].
type Decl interface{ decl() }

// An Ident is a name with its position.
type Ident struct {
	Pos
	Name string
}

// A Value is a number, or the name of a constant.
type Value struct {
	Pos
	Name string // "" for a number
	Int  Int    // the number
}

// String returns the name, or the number in decimal.
func (v Value) String() string {
	if v.Name != "" {
		return v.Name
	}
	return v.Int.String()
}

// A Const is const Name = Value, or #define Name Value. RFC 4506 section 4.17. With IsText it is const Name = "Text",
// as rpcgen accepts it.
type Const struct {
	Name   Ident
	Value  Value
	Text   string
	IsText bool
	Doc    Comments
}

// A TypeDef gives a type a name: by typedef, or by enum Name, struct Name and union Name, which
// mean the same. RFC 4506 section 4.18.
type TypeDef struct {
	Name Ident
	Type Type
	Doc  Comments
}

// A Type is [*Basic], [*Ref], [*Enum], [*Struct], [*Union], [*Opaque], [*String], [*Array] or
// [*Optional].
type Type interface{ At() Pos }

// A Kind is a type without parameters.
type Kind int

// The kinds, with their sections in RFC 4506.
const (
	Int32     Kind = iota // int, 4.1; also char, short, long
	Uint32                // unsigned int, 4.2; also unsigned, and unsigned char, short, long
	Hyper                 // hyper, 4.5
	Uhyper                // unsigned hyper, 4.5
	Float                 // float, 4.6
	Double                // double, 4.7
	Quadruple             // quadruple, 4.8
	Bool                  // bool, 4.4
)

// String returns the RFC's name of the type.
func (k Kind) String() string {
	return [...]string{"int", "unsigned int", "hyper", "unsigned hyper", "float", "double", "quadruple", "bool"}[k]
}

// A Basic is a type without parameters.
type Basic struct {
	Pos
	Kind Kind
}

// A Ref is a reference to a type by name. Keyword is the word before the name, struct, union or enum, or "".
type Ref struct {
	Ident
	Keyword string
}

// An Enum is the body of an enumeration. RFC 4506 section 4.3.
type Enum struct {
	Pos
	Values []Enumerator
}

// An Enumerator is one constant of an enumeration. Without a Value it is one more than the previous one, or 0.
type Enumerator struct {
	Name  Ident
	Value *Value
	Doc   Comments
}

// A Struct is the body of a structure. RFC 4506 section 4.14.
type Struct struct {
	Pos
	Members []*Member
}

// A Union is the body of a discriminated union. RFC 4506 section 4.15.
type Union struct {
	Pos
	Discriminant *Member
	Arms         []*Arm
}

// An Arm is a member of a union with the values of the discriminant that select it.
type Arm struct {
	Pos
	Labels  []Value // without the default label
	Default bool    // the default label is among them
	Member  *Member
}

// A Member is a declaration within a structure or union, or a parameter of a procedure.
type Member struct {
	Pos
	Name string // "" for void, and for most parameters
	Type Type   // nil for void
	Doc  Comments
}

// An Opaque is opaque data of exactly Len bytes if Fixed, or else of at most Len. RFC 4506 sections 4.9 and 4.10.
type Opaque struct {
	Pos
	Fixed bool
	Len   *Value // nil: no limit
}

// A String is a string of at most Len bytes. RFC 4506 section 4.11.
type String struct {
	Pos
	Len *Value // nil: no limit
}

// An Array has exactly Len elements if Fixed, or else at most Len. RFC 4506 sections 4.12 and 4.13.
type Array struct {
	Pos
	Elem  Type
	Fixed bool
	Len   *Value // nil: no limit
}

// An Optional is optional-data. RFC 4506 section 4.19.
type Optional struct {
	Pos
	Elem Type
}

// A Program is a remote program. RFC 5531 section 12.
type Program struct {
	Name     Ident
	Number   Value
	Versions []*Version
	Doc      Comments
}

// A Version is one version of a program.
type Version struct {
	Name   Ident
	Number Value
	Procs  []*Proc
	Doc    Comments
}

// A Proc is a procedure.
type Proc struct {
	Name   Ident
	Number Value
	Args   []*Member // none for void
	Result Type      // nil for void
	Doc    Comments
}

func (*Const) decl()   {}
func (*TypeDef) decl() {}
func (*Program) decl() {}

// At returns the position of a type's first word.
func (p Pos) At() Pos { return p }
