package calling

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// encode returns a call with the arguments in a JSON text.
func (m *method) encode(text string) (*rpc.Call, error) {
	args, err := arguments(text, m.proc.Args)
	if err != nil {
		return nil, err
	}
	e := encoder{proc: m.proc, call: m.newCall(args)}
	for i, p := range m.proc.Args {
		if err := e.member(p, args[i]); err != nil {
			if p.Name != "" && len(m.proc.Args) > 1 {
				err = within(p.Name, err)
			}
			return nil, err
		}
	}
	return e.call, nil
}

// arguments returns one value for each parameter.
func arguments(text string, params []*check.Member) ([]any, error) {
	if strings.TrimSpace(text) == "" {
		if len(params) > 0 {
			return nil, errors.New("argument JSON is missing")
		}
		return nil, nil
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("not JSON: there is more after the value")
	}
	switch list, ok := v.([]any); {
	case len(params) == 1:
		return []any{v}, nil
	case ok && len(list) == len(params):
		return list, nil
	case len(params) == 0:
		return nil, errors.New("want none")
	}
	return nil, fmt.Errorf("want an array of %d", len(params))
}

// encoder appends values to the arguments of a call.
type encoder struct {
	proc *check.Proc
	call *rpc.Call
}

// placeError reports an invalid value and its place.
type placeError struct {
	path string // for example what.dir.data
	err  error
}

func (e *placeError) Error() string { return e.path + ": " + e.err.Error() }

func (e *placeError) Unwrap() error { return e.err }

// within converts err to the error of a member or an element.
func within(name string, err error) error {
	if inner, ok := err.(*placeError); ok {
		dot := "."
		if strings.HasPrefix(inner.path, "[") {
			dot = ""
		}
		return &placeError{name + dot + inner.path, inner.err}
	}
	return &placeError{name, err}
}

// wanted returns the error for a value that is not of type t.
func wanted(t *check.Type, what string, v any) error {
	got, err := json.Marshal(v)
	if err != nil {
		return err
	}
	const most = 40
	if len(got) > most {
		got = append(got[:most], "..."...)
	}
	if t.Name != "" {
		what += ", of type " + t.Name
	}
	return fmt.Errorf("want %s, got %s", what, got)
}

// member appends a member, a parameter, or an item that may be placed directly.
func (e *encoder) member(m *check.Member, v any) error {
	if !e.proc.Items[m] {
		return e.value(m.Type, v)
	}
	data, err := opaque(m.Type.Base(), v)
	if err != nil {
		return err
	}
	e.call.Args = xdr.AppendUint32(e.call.Args, uint32(len(data)))
	if len(data) > 0 {
		e.call.ReadItems = append(e.call.ReadItems, rpc.ReadItem{Offset: len(e.call.Args), Data: data})
	}
	return nil
}

// value appends a value of a type.
func (e *encoder) value(t *check.Type, v any) error {
	b := &e.call.Args
	switch t.Kind {
	case check.Typedef:
		return e.value(t.Elem, v)
	case check.Int32, check.Uint32, check.Hyper, check.Uhyper, check.Enum, check.Bool:
		bits, err := integer(t, v)
		if err != nil {
			return err
		}
		if t.Kind == check.Hyper || t.Kind == check.Uhyper {
			*b = xdr.AppendUint64(*b, bits)
		} else {
			*b = xdr.AppendUint32(*b, uint32(bits))
		}
	case check.Float, check.Double:
		bits := 64
		if t.Kind == check.Float {
			bits = 32
		}
		f, err := strconv.ParseFloat(fmt.Sprint(v), bits)
		if err != nil {
			return wanted(t, "a number", v)
		}
		if bits == 32 {
			*b = xdr.AppendFloat32(*b, float32(f))
		} else {
			*b = xdr.AppendFloat64(*b, f)
		}
	case check.Quadruple:
		s, _ := v.(string)
		data, err := hex.DecodeString(s)
		if err != nil || len(data) != quadruple {
			return wanted(t, "32 hexadecimal digits", v)
		}
		*b = xdr.AppendFixedOpaque(*b, data)
	case check.String:
		s, ok := v.(string)
		switch {
		case !ok:
			return wanted(t, "a string", v)
		case uint64(len(s)) > uint64(t.Len):
			return fmt.Errorf("%d bytes, limit is %d", len(s), t.Len)
		}
		*b = xdr.AppendString(*b, s)
	case check.Opaque:
		data, err := opaque(t, v)
		switch {
		case err != nil:
			return err
		case t.Fixed:
			*b = xdr.AppendFixedOpaque(*b, data)
		default:
			*b = xdr.AppendOpaque(*b, data)
		}
	case check.Optional:
		*b = xdr.AppendBool(*b, v != nil)
		if v != nil {
			return e.value(t.Elem, v)
		}
	case check.Array, check.List:
		return e.array(t, v)
	case check.Struct:
		return e.fields(t, t.Members, v)
	case check.Union:
		return e.union(t, v)
	}
	return nil
}

// quadruple is the length of a quadruple-precision number, in bytes.
const quadruple = 16

// integer returns the bits of a number, a boolean or an enumerator.
func integer(t *check.Type, v any) (uint64, error) {
	switch t.Kind {
	case check.Bool:
		set, ok := v.(bool)
		if !ok {
			return 0, wanted(t, "true or false", v)
		}
		if set {
			return 1, nil
		}
		return 0, nil
	case check.Enum:
		var names []string
		for _, x := range t.Values {
			if number := x.Value.String(); v == x.Name || v == json.Number(number) {
				n, _ := x.Value.Int64()
				return uint64(n), nil
			}
			names = append(names, x.Name)
		}
		if n, err := strconv.ParseInt(fmt.Sprint(v), 10, 32); err == nil && t.Open {
			return uint64(n), nil
		}
		return 0, wanted(t, strings.Join(names, ", "), v)
	case check.Uint32, check.Uhyper:
		bits := 64
		if t.Kind == check.Uint32 {
			bits = 32
		}
		n, err := strconv.ParseUint(fmt.Sprint(v), 0, bits)
		if err != nil {
			return 0, wanted(t, fmt.Sprintf("a whole number of 0 to %d", uint64(math.MaxUint64)>>(64-bits)), v)
		}
		return n, nil
	}
	bits := 64
	if t.Kind == check.Int32 {
		bits = 32
	}
	n, err := strconv.ParseInt(fmt.Sprint(v), 0, bits)
	if err != nil {
		return 0, wanted(t, fmt.Sprintf("a whole number of %d bits", bits), v)
	}
	return uint64(n), nil
}

// opaque returns opaque data.
func opaque(t *check.Type, v any) ([]byte, error) {
	s, ok := v.(string)
	data, err := base64.StdEncoding.DecodeString(s)
	switch {
	case !ok || err != nil:
		return nil, wanted(t, "base64", v)
	case t.Fixed && uint64(len(data)) != uint64(t.Len):
		return nil, fmt.Errorf("%d bytes, want %d", len(data), t.Len)
	case uint64(len(data)) > uint64(t.Len):
		return nil, fmt.Errorf("%d bytes, limit is %d", len(data), t.Len)
	}
	return data, nil
}

// array appends an array or a linked list.
func (e *encoder) array(t *check.Type, v any) error {
	list, ok := v.([]any)
	switch {
	case !ok:
		return wanted(t, "an array", v)
	case t.Kind == check.List:
	case t.Fixed && uint64(len(list)) != uint64(t.Len):
		return fmt.Errorf("%d elements, want %d", len(list), t.Len)
	case uint64(len(list)) > uint64(t.Len):
		return fmt.Errorf("%d elements, limit is %d", len(list), t.Len)
	}
	b := &e.call.Args
	if t.Kind == check.Array && !t.Fixed {
		*b = xdr.AppendUint32(*b, uint32(len(list)))
	}
	for i, x := range list {
		if t.Kind == check.List {
			*b = xdr.AppendBool(*b, true)
		}
		if err := e.value(t.Elem, x); err != nil {
			return within(fmt.Sprintf("[%d]", i), err)
		}
	}
	if t.Kind == check.List {
		*b = xdr.AppendBool(*b, false)
	}
	return nil
}

// fields appends the members of an object, which must have exactly these.
func (e *encoder) fields(t *check.Type, members []*check.Member, v any) error {
	object, ok := v.(map[string]any)
	if !ok {
		return wanted(t, "an object", v)
	}
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
		x, ok := object[m.Name]
		if !ok {
			return within(m.Name, errors.New("is missing"))
		}
		if err := e.member(m, x); err != nil {
			return within(m.Name, err)
		}
	}
	for name := range object {
		if !slices.Contains(names, name) {
			return within(name, fmt.Errorf("no such member: want %s", strings.Join(names, ", ")))
		}
	}
	return nil
}

// union appends the discriminant and the member of its arm.
func (e *encoder) union(t *check.Type, v any) error {
	object, ok := v.(map[string]any)
	if !ok {
		return wanted(t, "an object", v)
	}
	d := t.Discriminant
	x, ok := object[d.Name]
	if !ok {
		return within(d.Name, errors.New("is missing"))
	}
	bits, err := integer(d.Type.Base(), x)
	if err != nil {
		return within(d.Name, err)
	}
	a, ok := arm(t, bits)
	if !ok {
		return within(d.Name, fmt.Errorf("no arm for %v", x))
	}
	members := []*check.Member{d}
	if a.Member != nil {
		members = append(members, a.Member)
	}
	return e.fields(t, members, v)
}

// arm returns the arm of a union for a value of its discriminant.
func arm(t *check.Type, bits uint64) (found *check.Arm, ok bool) {
	for _, a := range t.Arms {
		for _, l := range a.Labels {
			n, _ := l.Value.Int64()
			if uint32(n) == uint32(bits) {
				return a, true
			}
		}
		if a.Default {
			found = a
		}
	}
	return found, found != nil
}
