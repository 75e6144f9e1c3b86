package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// protobuf compiles compare.proto in the current directory with the plugins of Google and of
// vtprotobuf. A compiler in Go stands in for protoc.
func protobuf() {
	const file = "compare.proto"
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), file)
	check(err)
	req := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		ProtoFile:      []*descriptorpb.FileDescriptorProto{protoutil.ProtoFromFileDescriptor(files[0])},
	}
	plugin(req, "google.golang.org/protobuf/cmd/protoc-gen-go", "paths=source_relative")
	plugin(req, "github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto",
		"paths=source_relative,features=marshal+unmarshal+unmarshal_unsafe+size")
}

// plugin runs a plugin of protoc, and writes the files that it answers with.
func plugin(req *pluginpb.CodeGeneratorRequest, path, parameter string) {
	req.Parameter = proto.String(parameter)
	in, err := proto.Marshal(req)
	check(err)
	cmd := exec.Command("go", "run", path)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	check(err)
	var res pluginpb.CodeGeneratorResponse
	check(proto.Unmarshal(out, &res))
	if res.Error != nil {
		check(errors.New(res.GetError()))
	}
	for _, f := range res.File {
		check(os.WriteFile(filepath.Join("protobuf", filepath.Base(f.GetName())), []byte(f.GetContent()), 0o666))
	}
}
