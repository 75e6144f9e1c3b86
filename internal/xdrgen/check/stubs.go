package check

import (
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// Limits for stubs.
const (
	maxReceived = 4  // items in results: see rpc.ReplyBounds
	maxSent     = 64 // items in arguments
	maxCounts   = 16 // counts of a bound
)

// Bounds for parts of results without the annotation max, in bytes of content.
const (
	maxPart       = 1 << 20  // upper limit, whatever their own
	unlimitedPart = 64 << 10 // for those without a limit
	maxItem       = 16 << 20 // upper limit for items
	unlimitedItem = 1 << 20

	// A limit of 4 GiB, which is all that a length word can express, does not count.
	noLimit = 1 << 32
)

// Stubs completes the programs of a specification for the generation of clients and servers: it reads the annotations,
// and finds the items of each procedure that may be placed directly, and the size of results. The error joins an
// [*syntax.Error] for each mistake.
func Stubs(spec *Spec) error {
	s := &stubs{consts: make(map[string]int64), procs: make(map[string]bool), declared: make(map[*ddp]bool), used: make(map[*Member]bool), lengths: make(map[*Type]int64)}
	for _, c := range spec.Consts {
		if n, ok := c.Value.Int64(); ok && !c.IsText {
			s.consts[c.Name] = n
		}
	}
	for _, c := range spec.Consts {
		s.only(c.Doc, "constant", "go")
	}
	for _, p := range spec.Programs {
		s.only(p.Doc, "program", "go")
		for _, v := range p.Versions {
			s.only(v.Doc, "version", "go", "lax", "independent", "wrapped")
			v.Lax = annotated(v.Doc, "lax")
			v.Independent = annotated(v.Doc, "independent")
			v.Wrapped = annotated(v.Doc, "wrapped")
			for _, proc := range v.Procs {
				s.procs[proc.Name] = true
			}
		}
	}
	for _, t := range spec.Types {
		s.annotations(t)
	}
	for _, p := range spec.Programs {
		for _, v := range p.Versions {
			for _, proc := range v.Procs {
				if s.errs.Full() {
					break
				}
				s.procedure(spec, proc)
			}
		}
	}
	for _, t := range spec.Types {
		s.unused(t)
	}
	return s.errs.Err()
}

type stubs struct {
	errs     syntax.Errors
	consts   map[string]int64
	procs    map[string]bool // declared procedures
	declared map[*ddp]bool   // annotations with procedures that have been looked up

	lengths map[*Type]int64  // see longest
	used    map[*Member]bool // members returned by Failure and TimeLeft

	// State of the current procedure.
	proc    *Proc
	failed  bool            // it has a mistake
	results bool            // set while its results are examined, rather than its arguments
	open    map[*Type]bool  // types being examined
	bounds  map[*Type]Bound // of types with names
}

// only reports all annotations but these.
func (s *stubs) only(doc syntax.Comments, what string, words ...string) {
annotations:
	for _, a := range doc.Annotations() {
		for _, w := range words {
			if a.Word == w {
				continue annotations
			}
		}
		s.errs.Add(a.Pos, "annotation %s means nothing at a %s", a.Word, what)
	}
}

// annotations checks the annotations of a type.
func (s *stubs) annotations(t *Type) {
	s.only(t.Doc, "type", "go", "open", "scoped", "distinct", "ddp", "extern", "head")
	s.named(t.ddp)
	for _, v := range t.Values {
		s.only(v.Doc, "value", "go")
	}
	members := t.Members
	if t.Kind == Union {
		s.only(t.Discriminant.Doc, "discriminant", "go")
		for _, a := range t.Arms {
			if a.Member != nil {
				members = append(members[:len(members):len(members)], a.Member)
			} else {
				s.only(a.Doc, "void arm")
			}
		}
	}
	for _, m := range members {
		s.only(m.Doc, "member", "go", "ddp", "max", "flat", "error", "deadline", "open") // the latter belongs to a body in it
		if _, ok := most(m.Doc); ok && m.Type.Min == m.Type.Max {
			s.errs.Add(m.Pos, "%s has a maximum, though its length is fixed", m.Name)
		}
		s.named(m.ddp)
	}
}

// named reports undeclared procedures of an annotation.
func (s *stubs) named(d *ddp) {
	if d == nil || s.declared[d] {
		return
	}
	s.declared[d] = true
	for _, name := range d.procs {
		if !s.procs[name] {
			s.errs.Add(d.Pos, "ddp is for procedure %s, which is not declared", name)
		}
	}
}

// unused reports annotations error and deadline that no procedure uses.
func (s *stubs) unused(t *Type) {
	for _, m := range t.members() {
		for _, a := range m.Doc.Annotations() {
			if (a.Word == "error" || a.Word == "deadline") && !s.used[m] {
				what := "a string with one case in the union that a procedure returns"
				if a.Word == "deadline" {
					what = "an unsigned int in the structure that is an argument"
				}
				s.errs.Add(a.Pos, "%s belongs to %s", a.Word, what)
			}
		}
	}
}

// Failure returns the arm of the results that carries the text of a handler's error, or nil.
func (p *Proc) Failure() *Arm {
	if p.Returned == nil || p.Returned.Type.extern() {
		return nil
	}
	for _, a := range p.Returned.Type.Base().Arms {
		if a.Member != nil && annotated(a.Member.Doc, "error") && len(a.Labels) == 1 && !a.Default && a.Member.Type.Base().Kind == String {
			return a
		}
	}
	return nil
}

// TimeLeft returns the member of an argument that carries the time until the caller's deadline, or nil.
func (p *Proc) TimeLeft() (arg, member *Member) {
	for _, a := range p.Args {
		if t := a.Type.Base(); t.Kind == Struct && !a.Type.extern() {
			for _, m := range t.Members {
				if annotated(m.Doc, "deadline") && m.Type.Base().Kind == Uint32 {
					return a, m
				}
			}
		}
	}
	return nil, nil
}

// procedure completes one procedure.
func (s *stubs) procedure(spec *Spec, p *Proc) {
	s.only(p.Doc, "procedure", "go", "idempotent", "inline", "oneway", "ddp", "max", "stream")
	for _, a := range p.Doc.Annotations() {
		switch a.Word {
		case "ddp":
			s.errs.Add(a.Pos, "ddp belongs to a typedef of the argument or the result of %s, not to the procedure", p.Name)
		case "idempotent":
			p.Idempotent = true
		case "inline":
			p.Inline = true
		case "stream":
			s.stream(a.Pos, p)
		case "oneway":
			// RFC 8166 section 3.3: a credit comes back with the reply.
			s.errs.Add(a.Pos, "procedure %s cannot be one-way: RPC-over-RDMA has no calls without a reply", p.Name)
		}
	}
	if p.Number == 0 && (len(p.Args) > 0 || p.Returned != nil) {
		// RFC 5531 section 12.1.
		s.errs.Add(p.Pos, "procedure %s has number 0, and so neither arguments nor results: servers answer it themselves", p.Name)
	}
	if a, ok := most(p.Doc); ok && (p.Returned == nil || p.Returned.Type.Min == p.Returned.Type.Max) {
		s.errs.Add(a.Pos, "%s has a maximum, though its result is void or of a fixed length", p.Name)
	}
	if a := p.Failure(); a != nil {
		s.used[a.Member] = true
	}
	if _, m := p.TimeLeft(); m != nil {
		s.used[m] = true
	}
	s.proc, s.failed = p, false
	s.open, s.bounds = make(map[*Type]bool), make(map[*Type]Bound)
	p.around(spec)
	for _, a := range p.Args {
		p.Longest = add(p.Longest, s.longest(a.Type))
	}
	for _, a := range p.Args {
		s.results = false
		list, _ := s.member(a, "")
		if p.Sent = append(p.Sent, list...); len(p.Sent) > maxSent {
			s.mistake(p.Pos, "arguments of %s have more than %d items that may be placed directly", p.Name, maxSent)
		}
	}
	if p.Streamed != nil && len(p.Sent) > 0 {
		s.mistake(p.Pos, "arguments of %s cannot be placed directly: it streams its results", p.Name)
	}
	if p.Returned == nil {
		return
	}
	s.results = true
	list, _ := s.member(p.Returned, "")
	if len(list) > maxReceived {
		s.mistake(p.Pos, "results of %s have more than %d items that may be placed directly", p.Name, maxReceived)
	}
	if s.failed {
		return
	}
	for _, m := range list {
		p.Received = append(p.Received, Received{m, s.item(m)})
	}
	p.Bound = s.memberBound(p.Returned)
	p.Longest = max(p.Longest, s.longest(p.Returned.Type))
}

// stream makes p a procedure that streams its results: its calls open, feed and close a stream (package
// rpc/stream), and have no results.
func (s *stubs) stream(at syntax.Pos, p *Proc) {
	switch {
	case p.Returned == nil:
		s.errs.Add(at, "%s has no results to stream", p.Name)
	case p.Inline:
		s.errs.Add(at, "%s cannot be inline: a stream has a goroutine", p.Name)
	}
	p.Returned, p.Streamed, p.Idempotent = nil, p.Returned, true
}

func (s *stubs) mistake(at syntax.Pos, format string, args ...any) {
	s.errs.Add(at, format, args...)
	s.failed = true
}

// around finds the types that contain items of the procedure.
func (p *Proc) around(spec *Spec) {
	p.Items, p.Around = make(map[*Member]bool), make(map[*Type]bool)
	var inside func(t *Type, top bool) bool
	inside = func(t *Type, top bool) bool {
		if t.Name != "" && !top {
			return p.Around[t]
		}
		for u := range t.uses {
			if inside(u.typ, false) {
				return true
			}
		}
		for _, m := range t.members() {
			if p.Items[m] {
				return true
			}
		}
		return false
	}
	find := func(m *Member) {
		if m.ddp.holds(p) {
			p.Items[m] = true
		}
	}
	for _, t := range spec.Types {
		for _, m := range t.members() {
			find(m)
		}
	}
	for _, a := range p.Args {
		find(a)
	}
	if p.Returned != nil {
		find(p.Returned)
	}
	for changed := len(p.Items) > 0; changed; {
		changed = false
		for _, t := range spec.Types {
			if !p.Around[t] && inside(t, true) {
				p.Around[t], changed = true, true
			}
		}
	}
}

// members returns the members of a structure, or of the arms of a union.
func (t *Type) members() []*Member {
	list := t.Members
	for _, a := range t.Arms {
		if a.Member != nil {
			list = append(list[:len(list):len(list)], a.Member)
		}
	}
	return list
}

// Holds reports whether an argument or the result is an item of the procedure, or contains any.
func (p *Proc) Holds(m *Member) bool { return p.Items[m] || p.Contains(m.Type) }

// Contains reports whether values of a type contain items of the procedure.
func (p *Proc) Contains(t *Type) bool {
	if t.Name != "" {
		return p.Around[t]
	}
	for u := range t.uses {
		if p.Contains(u.typ) {
			return true
		}
	}
	return false
}

// find returns the items in values of a type, in the order of the stream. all reports whether each value has all of
// them. in describes a place where there must be none, or is "".
//
// Results do not name positions: the first item of a reply goes to the first write chunk of the call, whichever item it
// is (RFC 8166 section 4.4.2). The number of an item must therefore not depend on the data.
func (s *stubs) find(t *Type, in string) (list []*Member, all bool) {
	if !s.proc.Contains(t) || s.failed {
		return nil, true
	}
	if t.Name != "" {
		if s.open[t] {
			return nil, true
		}
		s.open[t] = true
		defer delete(s.open, t)
		if t.Recursive {
			in = "a recursive type"
		}
	}
	switch t.Kind {
	case Typedef:
		return s.find(t.Elem, in)
	case Array:
		return s.find(t.Elem, "an array")
	case List:
		return s.find(t.Elem, "a linked list")
	case Optional:
		list, _ = s.find(t.Elem, in)
		return list, len(list) == 0
	}
	all = true
	for _, m := range t.members() {
		more, every := s.member(m, in)
		if len(more) > 0 && !all && s.results {
			s.mistake(more[0].ddp.Pos, "%s cannot be placed directly in the results of %s: %s comes before it in some of them alone",
				more[0].Name, s.proc.Name, list[0].Name)
		}
		if list = append(list, more...); len(list) > maxSent {
			break
		}
		if len(list) > 0 {
			all = all && every && t.Kind == Struct
		}
	}
	return list, all
}

// member is find for a member, an argument or the result.
func (s *stubs) member(m *Member, in string) (list []*Member, all bool) {
	if !s.proc.Items[m] {
		return s.find(m.Type, in)
	}
	if in != "" {
		s.mistake(m.ddp.Pos, "%s cannot be placed directly for %s: it is in %s", m.Name, s.proc.Name, in)
	}
	return []*Member{m}, true
}

// most returns the annotation max.
func most(doc syntax.Comments) (a syntax.Annotation, ok bool) {
	for _, a := range doc.Annotations() {
		if a.Word == "max" {
			return a, true
		}
	}
	return a, false
}

// annotated returns the bound set by the annotation max of a member, or of the procedure for its result. ok is false if
// none exists.
func (s *stubs) annotated(m *Member) (b Bound, ok bool) {
	doc := m.Doc
	if m == s.proc.Returned {
		doc = s.proc.Doc
	}
	a, ok := most(doc)
	if !ok {
		return b, false
	}
	var paths []Path
	for term := range strings.SplitSeq(a.Text, ",") {
		term = strings.TrimSpace(term)
		if n, ok := s.constant(term); ok {
			b.Bytes = max(b.Bytes, padded(n))
		} else if path := s.path(term); path != nil {
			paths = append(paths, path)
		} else {
			s.mistake(a.Pos, "max of %s: %s is neither a number of up to %d bytes, nor an integer in the arguments of %s",
				m.Name, strconv.Quote(term), maxTerm, s.proc.Name)
		}
	}
	if paths != nil {
		if b.Bytes > 0 {
			s.mistake(a.Pos, "max of %s has numbers and members of the arguments", m.Name)
		}
		b.Counts = [][]Path{paths}
	}
	return b, true
}

// maxTerm is the largest number in an annotation max.
const maxTerm = 1 << 30

func (s *stubs) constant(term string) (int64, bool) {
	n, ok := s.consts[term]
	if !ok {
		var err error
		n, err = strconv.ParseInt(term, 0, 64)
		ok = err == nil
	}
	return n, ok && n >= 0 && n <= maxTerm
}

// path finds an integer in the arguments by its name, such as args.count, or by that of a parameter. It returns nil if
// none exists.
func (s *stubs) path(term string) Path {
	names := strings.Split(term, ".")
	var path Path
	for _, a := range s.proc.Args {
		if a.Name == names[0] || a.Name == "" && names[0] == "args" && len(s.proc.Args) == 1 {
			path = Path{a}
		}
	}
	for _, name := range names[1:] {
		if path == nil {
			return nil
		}
		t := path[len(path)-1].Type.Base()
		var next *Member
		for _, m := range t.Members {
			if m.Name == name {
				next = m
			}
		}
		if next == nil {
			return nil
		}
		path = append(path, next)
	}
	if path == nil {
		return nil
	}
	switch path[len(path)-1].Type.Base().Kind {
	case Int32, Uint32, Hyper, Uhyper:
		return path
	}
	return nil
}

// item returns the bound of an item's data.
func (s *stubs) item(m *Member) Bound {
	if b, ok := s.annotated(m); ok {
		return b
	}
	n := int64(m.Type.Base().Len)
	if n == noLimit-1 {
		n = unlimitedItem
	}
	return Bound{Bytes: padded(min(n, maxItem))}
}

// bound returns a bound on the encoding of a part of the results.
func (s *stubs) bound(t *Type) Bound {
	if t.Name == "" {
		return s.part(t)
	}
	b, ok := s.bounds[t]
	if !ok {
		b = s.part(t)
		s.bounds[t] = b
	}
	return b
}

func (s *stubs) part(t *Type) (b Bound) {
	switch {
	case t.Kind == Typedef:
		return s.bound(t.Elem)
	case t.Recursive || t.Kind != Struct && t.Kind != Union && t.Kind != Optional:
		return Bound{Bytes: limit(t)}
	case t.Kind == Optional:
		b = s.bound(t.Elem)
		b.Bytes = add(b.Bytes, unit)
		return b
	case t.Kind == Struct:
		for _, m := range t.Members {
			part := s.memberBound(m)
			b.Bytes = add(b.Bytes, part.Bytes)
			b.Counts = append(b.Counts, part.Counts...)
		}
	default:
		for _, m := range t.members() {
			part := s.memberBound(m)
			b.Bytes = max(b.Bytes, part.Bytes)
			b.Counts = append(b.Counts, part.Counts...)
		}
		b.Bytes = add(b.Bytes, unit)
	}
	if len(b.Counts) > maxCounts {
		s.mistake(s.proc.Pos, "results of %s have more than %d parts whose maximum is in the arguments", s.proc.Name, maxCounts)
		b.Counts = nil
	}
	b.Bytes = min(b.Bytes, maxTerm)
	return b
}

// memberBound is bound for a member.
func (s *stubs) memberBound(m *Member) Bound {
	if s.proc.Items[m] {
		return Bound{Bytes: unit} // the length word
	}
	b, ok := s.annotated(m)
	if !ok {
		return s.bound(m.Type)
	}
	b.Bytes = add(b.Bytes, m.Type.Min)
	return b
}

// limit returns the bound of a type without examining its parts.
func limit(t *Type) int64 {
	if t.Max >= noLimit {
		return add(t.Min, unlimitedPart)
	}
	return t.Min + min(t.Max-t.Min, maxPart)
}

// longest returns the length of the longest encoding of a type. Parts without a limit count as empty, and so do parts
// longer than any message.
func (s *stubs) longest(t *Type) int64 {
	n, ok := s.lengths[t]
	if !ok {
		if n = s.length(t); n > maxTerm {
			n = t.Min
		}
		s.lengths[t] = n
	}
	return n
}

func (s *stubs) length(t *Type) (n int64) {
	switch {
	case t.Recursive || t.Kind == List:
		return t.Min
	case t.Kind == Typedef:
		return s.longest(t.Elem)
	case t.Kind == Optional:
		return add(unit, s.longest(t.Elem))
	case t.Kind == Array && t.Fixed:
		return mul(int64(t.Len), s.longest(t.Elem))
	case t.Kind == Array:
		return add(unit, mul(int64(t.Len), s.longest(t.Elem)))
	case t.Kind == Struct:
		for _, m := range t.Members {
			n = add(n, s.longestMember(m))
		}
		return n
	case t.Kind == Union:
		for _, m := range t.members() {
			n = max(n, s.longestMember(m))
		}
		return add(unit, n)
	}
	return t.Max
}

// longestMember is longest for a member, which may have a number as its maximum.
func (s *stubs) longestMember(m *Member) int64 {
	if a, ok := most(m.Doc); ok {
		if n, ok := s.constant(a.Text); ok {
			return add(m.Type.Min, padded(n))
		}
	}
	return s.longest(m.Type)
}
