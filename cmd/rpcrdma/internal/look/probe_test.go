package look

import (
	"encoding/json"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// fillIn sets the zero values in a struct to something else.
func fillIn(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			fillIn(f)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int:
			f.SetInt(int64(100 + i))
		case reflect.Uint32, reflect.Uint64:
			f.SetUint(uint64(100 + i))
		case reflect.String:
			f.SetString("text")
		}
	}
}

// The JSON has every field of rpc.ConnInfo, under a similar name.
func TestProbeTellsAll(t *testing.T) {
	var i rpc.ConnInfo
	fillIn(reflect.ValueOf(&i).Elem())
	i.LocalAddr, i.RemoteAddr = &net.TCPAddr{Port: 1}, &net.TCPAddr{Port: 2}
	i.ConfigError = errors.New("text")
	text, err := json.Marshal(newInfoJSON(i, "answered"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	check := func(typ reflect.Type, in map[string]any) {
		for k := range typ.NumField() {
			name := typ.Field(k).Name
			found := false
			for key, v := range in {
				key = strings.ReplaceAll(key, "_", "")
				if strings.EqualFold(key, name) || strings.EqualFold(key+"addr", name) {
					found = v != nil && !reflect.ValueOf(v).IsZero()
				}
			}
			if !found {
				t.Errorf("%s.%s is not in\n%s", typ.Name(), name, text)
			}
		}
	}
	check(reflect.TypeOf(i), got)
	caps, _ := got["capabilities"].(map[string]any)
	check(reflect.TypeOf(i.Capabilities), caps)
}
