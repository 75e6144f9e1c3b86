// Command xdrgen compiles .x files, in the language of RFC 4506 and RFC 5531 section 12, to Go.
//
//	xdrgen [-package NAME] [-o FILE] [-D NAME]... [-I DIR]... [-types] [-v] FILE.x...
//
// All input files are compiled to one Go file. It contains the constants and types of the source with their comments;
// for each version of a program a client, a server and an upper-layer binding; and for each type the methods Append,
// Decode and Check. To run it by go generate:
//
//	//go:generate go run github.com/rpcrdma/rpcrdma/cmd/xdrgen kv.x
//
// -package is the name of the package. It defaults to the package for which go generate runs, or else to the name of
// the first file. -o is the file to write, or - for standard output. It defaults to the name of the first file with .go
// in place of .x, in the current directory. -D defines a name for #ifdef. -I adds a directory to search for included .x
// files, after that of the including file. -types omits clients, servers and bindings: the remaining code depends only
// on package proto/xdr. -v prints ignored input, such as lines that begin with %; a comment such as /* DDP */, which
// looks like a misspelt annotation, is always reported.
//
// # Language
//
// Extensions in published files are accepted: preprocessor lines, rpcgen's % lines, char, short, long, int32_t and the
// like, struct T for a type T, string without a bound, enumerators without a value, struct *T { ... }.
//
// A comment /* open */ at an enumeration permits values that it does not define; otherwise they are an error, as in RFC
// 4506 section 4.3. A comment /* scoped */ puts the names of the values in the scope of the enumeration: other
// enumerations may use the same names, and only the cases of unions can refer to them. In Go they are prefixed with the
// name of the type, such as StatusNotFound for NOT_FOUND of status. A comment belongs to the declaration before it on
// the same line, or else to the one below it.
//
// Comments after members of structures and arms of unions:
//
//   - /* ddp */: the data, opaque<> or string<>, may be placed directly in memory of the receiver (RFC 8166 section
//     6.1). /* ddp: GET, PUT */ restricts this to these procedures. A string becomes a []byte. An item of results may
//     be optional if no other follows. After a typedef it applies to the members, arms, arguments and results of the
//     type, but not to elements of arrays.
//   - /* max: 65536 */: in results, limits the contents of the member to that many bytes. The number may be the name of
//     a constant, or a member of the arguments, as in /* max: args.count */. Of several, separated by commas, the
//     largest applies, up to 16 MiB.
//   - /* deadline */, at an unsigned int in a structure of arguments: the milliseconds until the deadline of the
//     client's context. The client sets it if its context has a deadline, and the handler's context gets the deadline.
//     In calls of a Pipeline, and in streams, the caller sets it.
//   - /* error */, at a string for one case of the union that a procedure returns: the text of a handler's error that
//     would otherwise be SYSTEM_ERR, truncated to the bound of the string. The client's method returns it as a
//     *rpc.HandlerError.
//
// Comments after procedures:
//
//   - /* idempotent */: it may be executed again if a client repeats a call; its replies are not cached.
//   - /* inline */: it is quick and never blocks; see rpc.Program.
//   - /* stream */: its results are a stream; see package rpc/stream, and stream.x there for the messages. Its
//     arguments must not have data that is placed directly.
//   - /* max: 65536 */: limits the result as a whole, like /* max */ after a member.
//   - /* oneway */ is an error: RPC-over-RDMA has no calls without a reply.
//
// A comment /* independent */ after the opening brace of a version says that no handler of the version waits for
// another call of its client: see Independent in rpc.Program.
//
// # Go
//
// put_args becomes PutArgs, NFS3ERR_PERM becomes Nfs3ErrPerm: a new word starts after an underscore or a digit, and
// all-capital words are lowered. If a name is taken, the second gets a suffix: Type, Const, Value, Program, Version,
// Proc, or Field. If two programs have a version of the same name, the types of the second begin with the program's
// name. A comment /* go: fileID */ at a declaration or a member names it fileID instead.
//
// Comments that change types:
//
//   - /* flat */ at a member that is a structure or a union: its fields become fields of the enclosing Go type. Arms of
//     a union share a field if name and type are the same. A linked list of structures with a single member becomes a
//     slice of the member's type.
//   - /* extern */ at a typedef of opaque data, a string or an array, with /* go: Name */: the package has a
//     hand-written type Name with the methods Append, Decode and Check. Its Decode must copy what it keeps.
//   - /* head */ at a type that ends with data marked ddp: generates the methods AppendHead and DecodeHead, which omit
//     the data and its length. They are for data that is sent or received separately.
//
// Enumerations are int32 types with constants. Unions are structs with the discriminant and a field for each arm;
// Decode zeroes the other arms. Optional data is a pointer, a linked list a slice, opaque data a []byte or an array.
// Typedefs of opaque data and arrays are distinct types, and so are those of a number, a bool or a string with the
// comment /* distinct */. All other typedefs are aliases.
//
// Append does not check what it encodes. Check returns an error if a peer would reject the encoding: too many elements,
// an undefined value, a discriminant without an arm. A nil optional arm of a recursive union is encoded as nothing.
//
// Decode stores views of the Decoder's input for opaque data, and copies of strings. It reuses the slices of its
// receiver, within their capacity, and what its pointers refer to. Nesting of recursive types is limited to
// [xdr.MaxDepth] levels, memory as described at [xdr.Decoder.LimitMemory]. Values reused for decoding may hold more
// than that, because elements keep their old capacity: [xdr.Decoder.Keep] says when to drop a value. Servers do so.
//
// # Clients
//
// Version KV1 of a program has a Kv1Client. NewKv1Client creates it from an rpc.Caller: a Client over RDMA or TCP, or,
// for calls to a client, a Conn or a Backchannel. Procedure KV_GET is the method Get: a prefix up to an underscore that
// the names of all procedures of the version share is omitted.
//
//	func (c *Kv1Client) Get(ctx context.Context, args *GetArgs, value []byte) (res GetRes, err error)
//
// Structures and unions are passed as pointers, all other types by value. Each argument of a procedure is a parameter.
// The arguments are followed by a buffer for each item of results that may be placed directly: the result's field is
// then a part of the buffer, whether the data came in a write chunk or inline. Items of arguments are sent without
// copying them. All other results are copies.
//
// Values that Check refuses are not sent. The sizes of types bound the results of a call. A part without a limit counts
// as 64 KiB, and any other part as at most 1 MiB. For bindings, an item without a limit counts as 1 MiB, and any
// other as at most 16 MiB. For clients the buffers bound the items.
//
// # Servers
//
// Kv1Server is an interface with a method for each procedure except number 0, which servers answer themselves.
// RegisterKv1 registers an implementation with a transport.Server. Kv1Program makes an rpc.Program of it, also for the
// callbacks of a client, and rpc.Versions combines several versions.
//
//	func (s *server) Get(ctx context.Context, req *rpc.Request, args *GetArgs, res *GetRes) error
//
// Byte slices in args are views of the message and are valid until the method returns. Items of res are sent without
// copying them, from req.Alloc or other memory; req.WhenReleased reports when that is no longer in use. Calls with
// arguments that do not decode are answered with GARBAGE_ARGS, and those for which there is no memory with SYSTEM_ERR:
// their decoded size counts towards Config.MaxMemory, and rpc.Request.LimitMemory raises the limit of a single call.
// For results the limit is a client's MaxDecoded. If the method returns an error, the reply is the oncrpc.AcceptStat or
// AuthStat that the error is or wraps. Otherwise it is SYSTEM_ERR, or a result with the text of the error, and
// Config.Logger gets a record. Program.Auth and wrappers of package middleware wrap the program.
//
// Clients and servers reject arguments and results with non-zero pad bytes, which RFC 4506 section 3 does not permit,
// except after items of arguments. A comment /* lax */ at a version makes them ignore such pad bytes. Other uses of
// Decode depend on the Decoder: see [xdr.Decoder.Strict].
//
// Kv1Names holds the names of the program and its procedures for errors, and for metrics with package rpc/names: those
// of the source, without the prefix shared by all procedures, and without _PROG or _PROGRAM at the end of the
// program's. It also holds the length of the longest message, as far as types have limits: RegisterKv1, and every call
// of a Kv1Client, fails with a *rpc.SizeError if Config.MaxMessage is less than that.
//
// Kv1Binding is the rpc.Binding, which finds the items in messages without decoding them.
//
// A comment /* wrapped */ at a version is for a package that wraps the client and the binding in its own: the generated
// names are then kv1Client, newKv1Client, kv1Binding and kv1Names. RegisterKv1 is omitted, and errors of the client do
// not begin with the name of the procedure.
//
// # Exit status
//
// 0 for success, 1 if a file has a mistake or cannot be read or written, 2 if the command line is invalid. Up to ten
// mistakes are printed, each as file:line:column: text.
//
// [xdr.MaxDepth]: https://pkg.go.dev/github.com/rpcrdma/rpcrdma/proto/xdr#MaxDepth
// [xdr.Decoder.Strict]: https://pkg.go.dev/github.com/rpcrdma/rpcrdma/proto/xdr#Decoder.Strict
// [xdr.Decoder.Keep]: https://pkg.go.dev/github.com/rpcrdma/rpcrdma/proto/xdr#Decoder.Keep
// [xdr.Decoder.LimitMemory]: https://pkg.go.dev/github.com/rpcrdma/rpcrdma/proto/xdr#Decoder.LimitMemory
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/gen"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

func main() {
	os.Exit(run(os.Args[1:], os.Getenv("GOPACKAGE"), os.Stdout, os.Stderr))
}

// list is a flag that may be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// options holds the flags.
type options struct {
	pkg, out      string
	defines, dirs list
	verbose       bool
	types         bool // without stubs
	files         []string
}

// run is main with its environment as arguments. It returns the exit status.
func run(args []string, pkg string, stdout, stderr io.Writer) int {
	opt := options{pkg: pkg}
	flags := flag.NewFlagSet("xdrgen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opt.pkg, "package", pkg, "`name` of the package")
	flags.StringVar(&opt.out, "o", "", "`file` to write, - for standard output")
	flags.Var(&opt.defines, "D", "`name` that #ifdef finds defined; may be repeated")
	flags.Var(&opt.dirs, "I", "`directory` of .x files that #include names; may be repeated")
	flags.BoolVar(&opt.types, "types", false, "leave out clients and servers of programs")
	flags.BoolVar(&opt.verbose, "v", false, "print what is ignored")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: xdrgen [-package NAME] [-o FILE] [-D NAME]... [-I DIR]... [-types] [-v] FILE.x...")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	opt.files = flags.Args()
	if len(opt.files) == 0 {
		flags.Usage()
		return 2
	}
	base := strings.TrimSuffix(filepath.Base(opt.files[0]), ".x")
	if opt.pkg == "" {
		opt.pkg = base
	}
	if !token.IsIdentifier(opt.pkg) || opt.pkg == "_" {
		fmt.Fprintf(stderr, "xdrgen: %q is not a valid package name; use -package\n", opt.pkg)
		return 2
	}
	if opt.out == "" {
		opt.out = base + ".go"
	}
	if err := compile(opt, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// compile reads the files and writes Go.
func compile(opt options, stdout, stderr io.Writer) error {
	var sources []syntax.Source
	for _, name := range opt.files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		sources = append(sources, syntax.Source{Name: filepath.Clean(name), Text: text})
	}
	file, err := syntax.Parse(sources, syntax.Options{Defines: opt.defines, Include: opt.include})
	for _, n := range file.Notes {
		if opt.verbose || n.Likely {
			fmt.Fprintln(stderr, n)
		}
	}
	if err != nil {
		return err
	}
	spec, err := check.Check(file)
	if err != nil {
		return err
	}
	if !opt.types {
		if err := check.Stubs(spec); err != nil {
			return err
		}
	}
	code, err := gen.Generate(spec, gen.Options{Package: opt.pkg, Stubs: !opt.types})
	if err != nil {
		return err
	}
	if opt.out == "-" {
		_, err = stdout.Write(code)
		return err
	}
	return os.WriteFile(opt.out, code, 0o666)
}

// include finds a file that an #include names.
func (opt options) include(from, name string) (path string, text []byte, err error) {
	for _, dir := range append([]string{filepath.Dir(from)}, opt.dirs...) {
		path = filepath.Join(dir, filepath.FromSlash(name))
		if text, err = os.ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
			return path, text, err
		}
	}
	return "", nil, fmt.Errorf("#include: no such file: %s", name)
}
