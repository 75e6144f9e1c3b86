package grpcrdma

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/grpcrdma/rpcrdma"
)

// How the long fields of a message travel beside it.
//
// The sender marshals a shallow copy of the message in which the long fields are empty, and sends each of them from its
// own memory. The receiver unmarshals the message and points the fields at the memory in which they arrived. A path
// names a field by its position in the marshalled message, so that a program that does not know the type can put
// message and fields together: see splice.

// placeMin is the length of the shortest field that is placed unless its option says otherwise, in bytes.
const placeMin = 4 << 10

// ---- which fields

// shape describes which fields of a message type may be placed.
type shape struct {
	fields []placeable
	short  bool // some field may be placed however short the message is
}

// placeable is a field that may be placed, or that contains such fields.
type placeable struct {
	protoreflect.FieldDescriptor
	least int // length of the shortest value that is placed, in bytes
}

// shapes caches the shapes of the messages of an endpoint.
type shapes struct{ sync.Map } // protoreflect.MessageDescriptor -> *shape

func (all *shapes) of(d protoreflect.MessageDescriptor) *shape {
	if s, ok := all.Load(d); ok {
		return s.(*shape)
	}
	s := new(shape)
	fields := d.Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		least := shortest(f, make(map[protoreflect.MessageDescriptor]bool))
		if least == never {
			continue
		}
		s.fields = append(s.fields, placeable{f, least})
		s.short = s.short || least < placeMin
	}
	// Fields that may be placed themselves come first, so that they are found even in a large message.
	slices.SortStableFunc(s.fields, func(a, b placeable) int { return cmp.Compare(depthOf(a), depthOf(b)) })
	all.Store(d, s)
	return s
}

// depthOf returns 0 for a field that may be placed itself, and 1 for a field that may contain such fields.
func depthOf(f protoreflect.FieldDescriptor) int {
	if f.Kind() == protoreflect.MessageKind || f.IsList() {
		return 1
	}
	return 0
}

// never is the least length for a value that is never placed.
const never = math.MaxInt

// shortest returns the length of the shortest value in f that is placed. seen holds the types already examined.
func shortest(f protoreflect.FieldDescriptor, seen map[protoreflect.MessageDescriptor]bool) int {
	option := f.Options()
	if f.IsMap() {
		f = f.MapValue()
	}
	switch f.Kind() {
	case protoreflect.BytesKind, protoreflect.StringKind:
		switch {
		case !proto.HasExtension(option, rpcrdma.E_Placed):
			return placeMin
		case proto.GetExtension(option, rpcrdma.E_Placed).(bool):
			return 1
		}
		return never
	case protoreflect.MessageKind: // groups have no length prefix, so they stay whole
	default:
		return never
	}
	d, least := f.Message(), never
	if seen[d] {
		return never
	}
	seen[d] = true
	fields := d.Fields()
	for i := range fields.Len() {
		least = min(least, shortest(fields.Get(i), seen))
	}
	return least
}

// ---- the sender

// stripper takes long fields out of a message.
type stripper struct {
	shapes *shapes
	path   wire.Path
	places []wire.Path
	items  [][]byte
	looked int  // elements, entries and messages examined
	sorted bool // maps must be marshalled in key order
}

// mostLooks is how many elements, entries and messages are searched for long fields. Searching a message of many short
// ones takes as long as marshalling it.
const mostLooks = 64

// looks counts one examination, and reports whether it is allowed.
func (s *stripper) looks() bool {
	s.looked++
	return s.looked <= mostLooks && len(s.items) < wire.MaxItems
}

// take takes v, the bytes or string at the current path, if it has at least least bytes.
func (s *stripper) take(f protoreflect.FieldDescriptor, least int, v protoreflect.Value) bool {
	var b []byte
	if f.Kind() == protoreflect.BytesKind {
		b = v.Bytes()
	} else {
		str := v.String()
		if len(str) >= least && !utf8.ValidString(str) {
			return false // let Marshal reject it
		}
		b = unsafe.Slice(unsafe.StringData(str), len(str))
	}
	if len(b) < least || len(s.items) == wire.MaxItems || len(s.path) > wire.MaxDepth {
		return false
	}
	s.places = append(s.places, slices.Clone(s.path))
	s.items = append(s.items, b)
	return true
}

func empty(f protoreflect.FieldDescriptor) protoreflect.Value {
	if f.Kind() == protoreflect.BytesKind {
		return protoreflect.ValueOfBytes([]byte{})
	}
	return protoreflect.ValueOfString("")
}

func (s *stripper) enter(field protoreflect.FieldNumber, at int) {
	s.path = append(s.path, wire.Step{Field: uint32(field), At: uint32(at)})
}

func (s *stripper) leave(n int) { s.path = s.path[:len(s.path)-n] }

// value returns v, a value of f, or what remains of it. least applies to bytes and strings.
func (s *stripper) value(f protoreflect.FieldDescriptor, least int, v protoreflect.Value) (left protoreflect.Value, changed bool) {
	if f.Kind() != protoreflect.MessageKind {
		if s.take(f, least, v) {
			return empty(f), true
		}
		return v, false
	}
	m := v.Message()
	if rest := s.message(m); rest != m {
		return protoreflect.ValueOfMessage(rest), true
	}
	return v, false
}

// message returns m, or a shallow copy without the fields taken.
func (s *stripper) message(m protoreflect.Message) protoreflect.Message {
	rest := m
	if len(s.path) >= wire.MaxDepth || !s.looks() {
		return m
	}
	for _, f := range s.shapes.of(m.Descriptor()).fields {
		if !m.Has(f.FieldDescriptor) {
			continue
		}
		v := m.Get(f.FieldDescriptor)
		left, changed := v, false
		switch {
		case f.IsMap():
			left, changed = s.entries(m, f, v.Map())
		case f.IsList():
			left, changed = s.list(m, f, v.List())
		default:
			s.enter(f.Number(), 0)
			left, changed = s.value(f.FieldDescriptor, f.least, v)
			s.leave(1)
		}
		if !changed {
			continue
		}
		if rest == m {
			rest = shallow(m)
		}
		rest.Set(f.FieldDescriptor, left)
	}
	return rest
}

// shallow returns a shallow copy of m.
func shallow(m protoreflect.Message) protoreflect.Message {
	c := m.New()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		c.Set(f, v)
		return true
	})
	c.SetUnknown(m.GetUnknown())
	return c
}

func (s *stripper) list(m protoreflect.Message, f placeable, l protoreflect.List) (left protoreflect.Value, changed bool) {
	var rest protoreflect.List
	for i := range l.Len() {
		if rest == nil && !s.looks() {
			break
		}
		s.enter(f.Number(), i)
		v, short := s.value(f.FieldDescriptor, f.least, l.Get(i))
		s.leave(1)
		if short && rest == nil {
			rest = m.NewField(f.FieldDescriptor).List()
			for k := range i {
				rest.Append(l.Get(k))
			}
		}
		if rest != nil {
			rest.Append(v)
		}
	}
	if rest == nil {
		return protoreflect.ValueOfList(l), false
	}
	return protoreflect.ValueOfList(rest), true
}

// Field numbers of map entries.
const (
	mapKey   protowire.Number = 1
	mapValue protowire.Number = 2
)

func (s *stripper) entries(m protoreflect.Message, f placeable, l protoreflect.Map) (left protoreflect.Value, changed bool) {
	if s.looked += l.Len(); s.looked > mostLooks { // a map is examined as a whole or not at all
		return protoreflect.ValueOfMap(l), false
	}
	keys := make([]protoreflect.MapKey, 0, l.Len())
	l.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, compareKeys) // the order of Marshal: see MarshalOptions.Deterministic
	rest := m.NewField(f.FieldDescriptor).Map()
	for i, k := range keys {
		s.enter(f.Number(), i)
		s.enter(mapValue, 0)
		v, short := s.value(f.MapValue(), f.least, l.Get(k))
		s.leave(2)
		changed = changed || short
		rest.Set(k, v)
	}
	s.sorted = s.sorted || changed
	return protoreflect.ValueOfMap(rest), changed
}

func compareKeys(a, b protoreflect.MapKey) int {
	switch x := a.Interface().(type) {
	case bool:
		return cmp.Compare(asInt(x), asInt(b.Bool()))
	case int32, int64:
		return cmp.Compare(a.Int(), b.Int())
	case uint32, uint64:
		return cmp.Compare(a.Uint(), b.Uint())
	default:
		return cmp.Compare(a.String(), b.String())
	}
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// strip appends the marshalled m without its long fields to b. It returns the long fields and their places.
func strip(all *shapes, b []byte, m proto.Message) (body []byte, places []wire.Path, items [][]byte, err error) {
	size := proto.Size(m)
	if size < placeMin && !all.of(m.ProtoReflect().Descriptor()).short {
		body, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
		return body, nil, nil, err
	}
	s := stripper{shapes: all}
	rest := s.message(m.ProtoReflect())
	opts := proto.MarshalOptions{Deterministic: s.sorted, UseCachedSize: len(s.items) == 0}
	body, err = opts.MarshalAppend(slices.Grow(b, size-sumOf(s.items)+16), rest.Interface())
	return body, s.places, s.items, err
}

func sumOf(items [][]byte) (n int) {
	for _, b := range items {
		n += len(b)
	}
	return n
}

// ---- the receiver

var errPlaces = errors.New("grpcrdma: the fields that came beside the message do not fit it")

// join unmarshals body into m and puts items in their places. m refers to the items afterwards. The errors are caused
// by the sender.
func join(m proto.Message, body []byte, places []wire.Path, items [][]byte) error {
	if len(places) != len(items) {
		return errPlaces
	}
	if err := proto.Unmarshal(body, m); err != nil || len(places) == 0 {
		return err
	}
	r := m.ProtoReflect()
	for i, p := range places {
		if !put(r, body, p, items[i]) {
			// The sender marshalled it differently from strip.
			whole, err := splice(nil, body, gather(places, items))
			if err != nil {
				return err
			}
			return proto.Unmarshal(whole, m)
		}
	}
	// Unmarshal reports required fields of proto2 that are missing, but the placed ones are set by now.
	return nil
}

// put sets the field at the end of path to data. b is the marshalled m. It returns false unless it is certain that b
// describes m, and that nothing elsewhere in b adds to the field or overrides it.
func put(m protoreflect.Message, b []byte, path wire.Path, data []byte) bool {
	if len(path) == 0 {
		return false
	}
	step, rest := path[0], path[1:]
	f := m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(step.Field))
	if f == nil || f.Kind() == protoreflect.GroupKind {
		return false
	}
	in, n := occurrence(b, protowire.Number(step.Field), int(step.At))
	at := int(step.At)
	switch {
	case f.IsMap():
		if at >= n || len(rest) == 0 || rest[0] != (wire.Step{Field: uint32(mapValue)}) || n != m.Get(f).Map().Len() {
			return false
		}
		return putEntry(m.Mutable(f).Map(), f, in, rest[1:], data)
	case f.IsList():
		if at >= n || n != m.Get(f).List().Len() {
			return false
		}
		l := m.Mutable(f).List()
		if f.Kind() == protoreflect.MessageKind {
			return put(l.Get(at).Message(), in, rest, data)
		}
		v, ok := valueOf(f, rest, data)
		if ok {
			l.Set(at, v)
		}
		return ok
	}
	if at > 0 || n > 1 {
		return false
	}
	if o := f.ContainingOneof(); o != nil && m.WhichOneof(o) != f {
		return false
	}
	if f.Kind() == protoreflect.MessageKind {
		return n == 1 && m.Has(f) && put(m.Mutable(f).Message(), in, rest, data)
	}
	v, ok := valueOf(f, rest, data)
	if ok {
		m.Set(f, v)
	}
	return ok
}

// putEntry does what put does, for the value of the map entry in.
func putEntry(l protoreflect.Map, f protoreflect.FieldDescriptor, in []byte, rest wire.Path, data []byte) bool {
	k, ok := keyOf(f.MapKey(), in)
	if !ok || !l.Has(k) {
		return false
	}
	value, n := occurrence(in, mapValue, 0)
	if n > 1 {
		return false
	}
	v := f.MapValue()
	if v.Kind() == protoreflect.MessageKind {
		return n == 1 && put(l.Mutable(k).Message(), value, rest, data)
	}
	d, ok := valueOf(v, rest, data)
	if ok {
		l.Set(k, d)
	}
	return ok
}

// valueOf returns data as a value of f. It fails if rest, the remaining path, is not empty.
func valueOf(f protoreflect.FieldDescriptor, rest wire.Path, data []byte) (v protoreflect.Value, ok bool) {
	switch {
	case len(rest) > 0:
		return v, false
	case f.Kind() == protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(data), true
	case f.Kind() == protoreflect.StringKind && utf8.Valid(data): // strings are immutable, so sharing the memory is safe
		return protoreflect.ValueOfString(unsafe.String(unsafe.SliceData(data), len(data))), true
	}
	return v, false // Unmarshal decides whether the string is valid
}

// keyOf decodes the key of a map entry. An entry without a key has the zero key, as usual. It fails if there are
// several.
func keyOf(f protoreflect.FieldDescriptor, entry []byte) (k protoreflect.MapKey, ok bool) {
	var found int
	v := f.Default()
	for b := entry; len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return k, false
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return k, false
		}
		if num == mapKey {
			found++
			if v, ok = scalar(f.Kind(), typ, b[n:n+size]); !ok {
				return k, false
			}
		}
		b = b[n+size:]
	}
	return v.MapKey(), found <= 1
}

// scalar decodes a value that may be the key of a map.
func scalar(kind protoreflect.Kind, typ protowire.Type, b []byte) (v protoreflect.Value, ok bool) {
	switch kind {
	case protoreflect.StringKind:
		s, n := protowire.ConsumeString(b)
		return protoreflect.ValueOfString(s), typ == protowire.BytesType && n >= 0
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		x, n := protowire.ConsumeFixed32(b)
		if kind == protoreflect.Sfixed32Kind {
			return protoreflect.ValueOfInt32(int32(x)), typ == protowire.Fixed32Type && n >= 0
		}
		return protoreflect.ValueOfUint32(x), typ == protowire.Fixed32Type && n >= 0
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		x, n := protowire.ConsumeFixed64(b)
		if kind == protoreflect.Sfixed64Kind {
			return protoreflect.ValueOfInt64(int64(x)), typ == protowire.Fixed64Type && n >= 0
		}
		return protoreflect.ValueOfUint64(x), typ == protowire.Fixed64Type && n >= 0
	}
	x, n := protowire.ConsumeVarint(b)
	if typ != protowire.VarintType || n < 0 {
		return v, false
	}
	switch kind {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(protowire.DecodeBool(x)), true
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(x)), true
	case protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(protowire.DecodeZigZag(x & (1<<32 - 1)))), true
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(x)), true
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(x)), true
	case protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(protowire.DecodeZigZag(x)), true
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(x), true
	}
	return v, false
}

// occurrence returns the contents of the at-th length-delimited field with this number in a marshalled message, and how
// many such fields there are.
func occurrence(b []byte, field protowire.Number, at int) (in []byte, count int) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, 0
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return nil, 0
		}
		if num == field && typ == protowire.BytesType {
			if count == at {
				in, _ = protowire.ConsumeBytes(b[n:])
			}
			count++
		}
		b = b[n+size:]
	}
	return in, count
}

// ---- without the type

// graft is data and the path at which it belongs.
type graft struct {
	path wire.Path
	data []byte
}

func gather(places []wire.Path, items [][]byte) []graft {
	all := make([]graft, len(items))
	for i := range items {
		all[i] = graft{places[i], items[i]}
	}
	return all
}

// splice appends to out the marshalled message b with the grafts in their places. Grafts for fields that b lacks,
// because they are empty, are appended at the end.
func splice(out, b []byte, grafts []graft) ([]byte, error) {
	seen := make(map[protowire.Number]int)
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errPlaces
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return nil, errPlaces
		}
		var inner []graft
		if typ == protowire.BytesType {
			inner, grafts = entering(grafts, num, seen[num])
			seen[num]++
		}
		if len(inner) == 0 {
			out = append(out, b[:n+size]...)
		} else {
			in, _ := protowire.ConsumeBytes(b[n:])
			var err error
			if out, err = graftInto(out, num, in, inner); err != nil {
				return nil, err
			}
		}
		b = b[n+size:]
	}
	for len(grafts) > 0 {
		p := grafts[0].path
		if len(p) == 0 {
			return nil, errPlaces
		}
		num := protowire.Number(p[0].Field)
		if !num.IsValid() || int(p[0].At) != seen[num] {
			return nil, errPlaces
		}
		var inner []graft
		inner, grafts = entering(grafts, num, seen[num])
		seen[num]++
		var err error
		if out, err = graftInto(out, num, nil, inner); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// graftInto appends the field num: its contents in with the inner grafts.
func graftInto(out []byte, num protowire.Number, in []byte, inner []graft) ([]byte, error) {
	out = protowire.AppendTag(out, num, protowire.BytesType)
	if len(inner) == 1 && len(inner[0].path) == 0 {
		return protowire.AppendBytes(out, inner[0].data), nil
	}
	whole, err := splice(nil, in, inner)
	if err != nil {
		return nil, err
	}
	return protowire.AppendBytes(out, whole), nil
}

// entering divides grafts into those inside the at-th field num, with the rest of their paths, and the others.
func entering(grafts []graft, num protowire.Number, at int) (inner, others []graft) {
	at0 := wire.Step{Field: uint32(num), At: uint32(at)}
	for i, g := range grafts {
		if len(g.path) > 0 && g.path[0] == at0 {
			if inner == nil {
				others = slices.Clone(grafts[:i])
			}
			inner = append(inner, graft{g.path[1:], g.data})
		} else if inner != nil {
			others = append(others, g)
		}
	}
	if inner == nil {
		return nil, grafts
	}
	return inner, others
}
