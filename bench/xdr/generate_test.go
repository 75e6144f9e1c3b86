//go:build !generated

package xdr

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/rpcrdma/rpcrdma/internal/testing/generated"
)

// TestGenerated compiles compare.x with three compilers, and compare.proto with two, and runs the tests of
// the codecs.
func TestGenerated(t *testing.T) {
	files := map[string][]byte{
		"ours/compare.go":      run(t, nil, "go", "run", "github.com/rpcrdma/rpcrdma/cmd/xdrgen", "-package", "ours", "-o", "-", "compare.x"),
		"goxdr/compare.go":     byGoxdr(t),
		"buildbarn/compare.go": byBuildbarn(t),
	}
	byProtoc(t, files)
	generated.Run(t, files)
}

// unkeyed is a literal of goxdr's two structures: XdrVecOpaque{&v.Data, 0xffffffff}.
var unkeyed = regexp.MustCompile(`\b(XdrVecOpaque|XdrString)\{(&[\w.]+), (\w+)\}`)

func byGoxdr(t *testing.T) []byte {
	code := run(t, nil, "go", "run", "github.com/xdrpp/goxdr/cmd/goxdr", "-fmt", "-p", "goxdr", "compare.x")
	// go vet wants keys in literals of other packages' structures.
	code = unkeyed.ReplaceAll(code, []byte("$1{@: $2, Bound: $3}"))
	code = bytes.ReplaceAll(code, []byte("XdrVecOpaque{@"), []byte("XdrVecOpaque{Bytes"))
	return bytes.ReplaceAll(code, []byte("XdrString{@"), []byte("XdrString{Str"))
}

// byBuildbarn compiles with a compiler that wants the path of the package in the source, and an empty
// file.
func byBuildbarn(t *testing.T) []byte {
	source, err := os.ReadFile("compare.x")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const path = "package \"github.com/rpcrdma/rpcrdma/bench/xdr/buildbarn\";\n"
	if err := os.WriteFile(filepath.Join(dir, "compare.x"), append([]byte(path), source...), 0o666); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "compare.go")
	run(t, nil, "go", "run", "github.com/buildbarn/go-xdr/cmd/xdr_compiler", "-I", dir, "compare.x", out)
	code, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	// go vet wants no %d for a bool.
	return bytes.ReplaceAll(code, []byte("follow has unknown value %d"), []byte("follow has unknown value %v"))
}

// byProtoc compiles compare.proto with the plugins of Google and of vtprotobuf. A compiler in Go stands
// in for protoc.
func byProtoc(t *testing.T, files map[string][]byte) {
	const file = "compare.proto"
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	req := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		ProtoFile:      []*descriptorpb.FileDescriptorProto{protoutil.ProtoFromFileDescriptor(compiled[0])},
	}
	for _, plugin := range []struct{ path, parameter string }{
		{"google.golang.org/protobuf/cmd/protoc-gen-go", "paths=source_relative"},
		{"github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto", "paths=source_relative,features=marshal+unmarshal+unmarshal_unsafe+size"},
	} {
		req.Parameter = proto.String(plugin.parameter)
		in, err := proto.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		var res pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(run(t, in, "go", "run", plugin.path), &res); err != nil || res.Error != nil {
			t.Fatalf("%s: %v %s", plugin.path, err, res.GetError())
		}
		for _, f := range res.File {
			files[filepath.Join("protobuf", filepath.Base(f.GetName()))] = []byte(f.GetContent())
		}
	}
}

// run runs a program and returns its standard output.
func run(t *testing.T, in []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	return out
}
