// Command protogen compiles a .proto file of this tree to Go, messages and services, without protoc:
//
//	//go:generate go run github.com/rpcrdma/rpcrdma/tools/protogen files.proto
//
// The path is relative to the working directory, and the one by which other files import this one. It may import files
// of module grpcrdma.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: protogen FILE.proto")
		os.Exit(2)
	}
	files, err := generate(context.Background(), os.Args[1])
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(name, text, 0o666)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

// generate returns the output of the plugins for a .proto file, by path of the generated file.
func generate(ctx context.Context, name string) (map[string][]byte, error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/rpcrdma/rpcrdma/grpcrdma").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{".", string(bytes.TrimSpace(dir))}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, name)
	if err != nil {
		return nil, err
	}
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{name}, Parameter: proto.String("paths=source_relative")}
	addFile(req, compiled[0])
	in, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		cmd := exec.CommandContext(ctx, "go", "tool", plugin)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", plugin, err)
		}
		var res pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(out, &res); err != nil || res.Error != nil {
			return nil, fmt.Errorf("%s: %v %s", plugin, err, res.GetError())
		}
		for _, f := range res.File {
			files[f.GetName()] = []byte(f.GetContent())
		}
	}
	return files, nil
}

// addFile adds a file to a request, after the files that it imports.
func addFile(req *pluginpb.CodeGeneratorRequest, f protoreflect.FileDescriptor) {
	for i := range f.Imports().Len() {
		addFile(req, f.Imports().Get(i).FileDescriptor)
	}
	var d *descriptorpb.FileDescriptorProto
	if r, ok := f.(linker.Result); ok {
		d = r.FileDescriptorProto()
	} else {
		d = protoutil.ProtoFromFileDescriptor(f)
	}
	for _, have := range req.ProtoFile {
		if have.GetName() == d.GetName() {
			return
		}
	}
	req.ProtoFile = append(req.ProtoFile, d)
}
