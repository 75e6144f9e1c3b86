package calling

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// decode returns the result of a call as a value for JSON.
func (m *method) decode(call *rpc.Call) (any, error) {
	results := call.Decoder()
	d := decoder{&results, m.proc}
	var v any
	if r := m.proc.Returned; r != nil {
		v = d.member(r)
	}
	return v, results.End()
}

// decoder decodes the results of a call. After an error, which the ResultDecoder keeps, its values are meaningless.
type decoder struct {
	*rpc.ResultDecoder
	proc *check.Proc
}

// object is a structure or union, with its members in the order of the file.
type object []field

type field struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, _ := json.Marshal(f.name)
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// member decodes a member, the result, or an item that may have been placed directly.
func (d decoder) member(m *check.Member) any {
	if d.proc.Items[m] {
		return base64.StdEncoding.EncodeToString(d.Item())
	}
	return d.value(m.Type)
}

func (d decoder) value(t *check.Type) any {
	switch t.Kind {
	case check.Typedef:
		return d.value(t.Elem)
	case check.Int32, check.Uint32, check.Hyper, check.Uhyper, check.Bool, check.Enum:
		v, _ := d.integer(t)
		return v
	case check.Float:
		return float(float64(d.Float32()), 32)
	case check.Double:
		return float(d.Float64(), 64)
	case check.Quadruple:
		return hex.EncodeToString(d.FixedOpaque(quadruple))
	case check.String:
		return d.String(t.Len)
	case check.Opaque:
		if t.Fixed {
			return base64.StdEncoding.EncodeToString(d.FixedOpaque(int(t.Len)))
		}
		return base64.StdEncoding.EncodeToString(d.Opaque(t.Len))
	case check.Optional:
		if d.Optional() && d.Enter() {
			defer d.Leave()
			return d.value(t.Elem)
		}
		return nil
	case check.Array, check.List:
		return d.array(t)
	}
	if !d.Enter() {
		return nil
	}
	defer d.Leave()
	if t.Kind == check.Union {
		return d.union(t)
	}
	o := object{}
	for _, m := range t.Members {
		o = append(o, field{m.Name, d.member(m)})
	}
	return o
}

// integer decodes a number, a boolean or an enumerator. It also returns its bits.
func (d decoder) integer(t *check.Type) (any, uint64) {
	switch t.Kind {
	case check.Bool:
		if d.Bool() {
			return true, 1
		}
		return false, 0
	case check.Hyper:
		n := d.Int64()
		return n, uint64(n)
	case check.Uhyper:
		n := d.Uint64()
		return n, n
	case check.Uint32:
		n := d.Uint32()
		return n, uint64(n)
	}
	n := d.Int32()
	for _, x := range t.Values {
		if v, _ := x.Value.Int64(); v == int64(n) {
			return x.Name, uint64(n)
		}
	}
	return n, uint64(n)
}

// float returns a number, or a string for values that JSON does not have.
func float(f float64, bits int) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, bits)
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, bits))
}

// array decodes an array or a linked list.
func (d decoder) array(t *check.Type) any {
	list := []any{}
	if t.Kind == check.List {
		for d.Err() == nil && d.Optional() {
			list = append(list, d.value(t.Elem))
		}
		return list
	}
	least := max(1, int(min(t.Elem.Min, math.MaxInt32)))
	var n int
	if t.Fixed {
		if n = int(t.Len); n > d.Remaining()/least {
			d.Fail("array does not fit the remaining bytes")
		}
	} else {
		n = d.Count(t.Len, least)
	}
	for i := 0; i < n && d.Err() == nil; i++ {
		list = append(list, d.value(t.Elem))
	}
	return list
}

// union decodes the discriminant and the member of its arm.
func (d decoder) union(t *check.Type) any {
	v, bits := d.integer(t.Discriminant.Type.Base())
	o := object{{t.Discriminant.Name, v}}
	switch a, ok := arm(t, bits); {
	case d.Err() != nil:
	case !ok:
		d.Invalid(t.Discriminant.Name, int64(int32(bits)))
	case a.Member != nil:
		o = append(o, field{a.Member.Name, d.member(a.Member)})
	}
	return o
}
