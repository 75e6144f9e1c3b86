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

// Names returns names for a names.Table of package rpc/names, with which Observers show the names of services and
// methods instead of numbers for unary calls. Each service is a program, and its methods are procedures. The first
// program returned is the one that carries all services and the frames of streams. Calls that are not in the table stay
// unnamed, so peers cannot make the number of names grow. A client knows the services with descriptors linked into the
// program, which is the case if it uses generated clients.
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

// programOf derives a program number from the name of a service. It is from a range that RFC 5531 section 13.3
// reserves, so no real program has it. In the unlikely case that two services of a table get the same number, names.New
// fails.
func programOf(service string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(service))
	return h.Sum32() | 1<<31
}

// procedureOf returns the procedure of the method called name, one of methods.
func procedureOf(service string, methods []string, name string) rpc.Procedure {
	return rpc.Procedure{Prog: programOf(service), Vers: 1, Proc: uint32(1 + slices.Index(methods, name))}
}

// methodsOf returns the names of the methods and streams of a service. They are sorted, so that observedByName derives
// the same numbers from a descriptor.
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

// observedByName returns the procedure of "/service/method", or zero if the program does not have its descriptor.
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
