package grpcrdma

import (
	"hash/fnv"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Names returns names for a names.Table of package rpc/names, with which Observers name unary calls of services in
// place of numbers: each service is a program, its methods are procedures. The first one is the program that carries
// all of them, with the frames of streams. Calls that the table does not have stay without a name, whatever peers
// send, so that the number of names is bounded. A client knows services of which the program has the descriptors, as
// programs with generated clients do.
func Names(services ...*grpc.ServiceDesc) []*oncrpc.Program {
	list := []*oncrpc.Program{names}
	for _, d := range services {
		list = append(list, &oncrpc.Program{
			Number: programOf(d.ServiceName), Vers: 1, Name: d.ServiceName,
			Procedures: append([]string{""}, methodsOf(d)...),
		})
	}
	return list
}

// programOf makes up the number of a program: one that RFC 5531 section 13.3 reserves, so that no program has it. names.New
// fails in the unlikely case that two services of a table get the same.
func programOf(service string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(service))
	return h.Sum32() | 1<<31
}

// procedureOf is the procedure of a method, one of those listed.
func procedureOf(service string, methods []string, name string) rpc.Procedure {
	return rpc.Procedure{Prog: programOf(service), Vers: 1, Proc: uint32(1 + slices.Index(methods, name))}
}

// methodsOf returns the methods of a service in the order of their names, which a descriptor has as well.
func methodsOf(d *grpc.ServiceDesc) (list []string) {
	for i := range d.Methods {
		list = append(list, d.Methods[i].MethodName)
	}
	for i := range d.Streams {
		list = append(list, d.Streams[i].StreamName)
	}
	slices.Sort(list)
	return list
}

// observedByName is the procedure of "/service/method", or zero if the program does not have its descriptor.
func observedByName(method string) (p rpc.Procedure) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	s, ok := d.(protoreflect.ServiceDescriptor)
	if err != nil || !ok || s.Methods().ByName(protoreflect.Name(name)) == nil {
		return p
	}
	var list []string
	for i := range s.Methods().Len() {
		list = append(list, string(s.Methods().Get(i).Name()))
	}
	slices.Sort(list)
	return procedureOf(service, list, name)
}
