package grpcrdma

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const optionFile = `
name: "o.proto" package: "o" syntax: "proto3"
message_type {
	name: "O"
	nested_type {
		name: "MapEntry" options { map_entry: true }
		field { name: "key" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
		field { name: "value" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
	}
	field { name: "plain" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL }
	field { name: "always" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL options { [rpcrdma.placed]: true } }
	field { name: "never" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL options { [rpcrdma.placed]: false } }
	field { name: "list" number: 4 type: TYPE_STRING label: LABEL_REPEATED options { [rpcrdma.placed]: true } }
	field { name: "map" number: 5 type: TYPE_MESSAGE type_name: ".o.O.MapEntry" label: LABEL_REPEATED options { [rpcrdma.placed]: true } }
	field { name: "child" number: 6 type: TYPE_MESSAGE type_name: ".o.O" label: LABEL_OPTIONAL }
}
message_type {
	name: "Never"
	field { name: "never" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL options { [rpcrdma.placed]: false } }
}
`

// TestOption: the option of a field says from which length on it is placed.
func TestOption(t *testing.T) {
	d := new(descriptorpb.FileDescriptorProto)
	if err := prototext.Unmarshal([]byte(optionFile), d); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		message, field string
		child          bool // the field is that of a message in the message
		length         int
		placed         bool
	}{
		{"O", "plain", false, 1, false},
		{"O", "plain", false, placeMin - 1, false},
		{"O", "plain", false, placeMin, true},
		{"O", "plain", true, placeMin, true},
		{"O", "always", false, 0, false},
		{"O", "always", false, 1, true},
		{"O", "always", true, 1, true},
		{"O", "never", false, placeMin, false},
		{"O", "never", true, 1 << 20, false},
		{"O", "list", false, 1, true},
		{"O", "map", false, 1, true},
		{"O", "map", true, placeMin, true},
		{"Never", "never", false, placeMin, false},
	} {
		m := dynamicpb.NewMessage(file.Messages().ByName(protoreflect.Name(tc.message)))
		var r protoreflect.Message = m
		if tc.child {
			r = m.Mutable(m.Descriptor().Fields().ByName("child")).Message()
		}
		f := r.Descriptor().Fields().ByName(protoreflect.Name(tc.field))
		data := bytes.Repeat([]byte("x"), tc.length)
		switch {
		case f.IsMap():
			r.Mutable(f).Map().Set(protoreflect.ValueOfInt32(1).MapKey(), protoreflect.ValueOfBytes(data))
		case f.IsList():
			r.Mutable(f).List().Append(protoreflect.ValueOfString(string(data)))
		case f.Kind() == protoreflect.StringKind:
			r.Set(f, protoreflect.ValueOfString(string(data)))
		default:
			r.Set(f, protoreflect.ValueOfBytes(data))
		}
		body, places, items, err := strip(new(shapes), nil, m)
		if err != nil || (len(items) > 0) != tc.placed {
			t.Errorf("%+v: %d items, %v", tc, len(items), err)
		}
		got := dynamicpb.NewMessage(m.Descriptor())
		if err := join(got, body, places, items); err != nil || !proto.Equal(got, m) {
			t.Errorf("%+v: got %v, %v", tc, got, err)
		}
	}
}
