// Coverage lists which functions of libibverbs and librdmacm the module offers, and
// why not the others.
//
// It reads the functions that exist from the installed headers, and those that are offered from the
// comments of packages ibv and rdmacm: a line that begins with "Implements:" is followed by the
// prototype of the C function. The program itself has the reason for each function that is left out,
// and fails for one that it knows nothing about.
//
//	coverage [-o FILE] ROOT
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// library is a C library with the header that declares it.
type library struct {
	name   string // name for pkg-config
	header string
	prefix *regexp.Regexp // matches its functions
}

var libraries = []library{
	{"libibverbs", "infiniband/verbs.h", regexp.MustCompile(`^(ibv_|mult_to_ibv|mbps_to_ibv)`)},
	{"librdmacm", "rdma/rdma_cma.h", regexp.MustCompile(`^rdma_`)},
}

// rooms lists the packages that cover C functions.
var rooms = []string{"ibv", "rdmacm"}

// group is a set of functions omitted for the same reason.
type group struct {
	title  string
	reason string
	names  *regexp.Regexp
}

var groups = []group{
	{"IPsec", "Linux has no driver that offers it: mlx5's was removed with the adapters that had it", regexp.MustCompile(`_flow_action`)},
	{
		"Blocking helpers of librdmacm", "they wait in the library, where no context ends the wait: ID.ResolveAddr, ID.GetRequest and ID.CreateQP do the same, and package net resolves names",
		regexp.MustCompile(`^rdma_create_ep$|^rdma_destroy_ep$|^rdma_get_request$|^rdma_(get|free)addrinfo$`),
	},
	{"Static linking", "an internal of the library's build", regexp.MustCompile(`^ibv_static_providers$`)},
}

// fakeAlone matches the functions that are tested only on package cgotest's fake: neither rxe nor siw supports them, as
// TestRareObjectsRDMA and TestRegionsRDMA of package ibv verify on the devices themselves.
var fakeAlone = regexp.MustCompile(`_(un)?import_|_td$|_parent_domain$|xrc|^ibv_get_srq_num$|^ibv_open_qp$|^ibv_post_srq_ops$|_wq$|_wq_recv$|_rwq_|_flow$|_counters|_tso$` +
	`|_rate_limit$|_ece$|_rt_values_ex$|_dm$|_dm_mr$|_dmabuf_mr$|_null_mr$|_rereg_mr$|_advise_mr$|^ibv_modify_cq$|_atomic_write$|_tm_info$|_cvlan$|_flow_tag$|_completion_ts$|_wallclock_ns$`)

func main() {
	out := flag.String("o", "", "write to this `file` instead of the standard output")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	text, err := report(flag.Arg(0))
	if err == nil && *out != "" {
		err = os.WriteFile(*out, []byte(text), 0o666)
	} else if err == nil {
		fmt.Print(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

// report writes the document for the tree at root and the installed headers.
func report(root string) (string, error) {
	offered, err := implemented(root)
	if err != nil {
		return "", err
	}
	var declared []string
	var versions []string
	for _, lib := range libraries {
		version, names, err := lib.functions()
		if err != nil {
			return "", err
		}
		versions = append(versions, lib.name+" "+version)
		declared = append(declared, names...)
	}
	return document(versions, declared, offered)
}

// document writes the document.
func document(versions, declared []string, offered map[string][]string) (string, error) {
	var b strings.Builder
	var rest []string
	for _, name := range declared {
		if offered[name] == nil {
			rest = append(rest, name)
		}
	}
	for name := range maps.Keys(offered) {
		if !slices.Contains(declared, name) {
			return "", fmt.Errorf("%s implements %s, which no header declares", offered[name], name)
		}
	}
	fmt.Fprintf(&b, "# What of rdma-core's interface is covered\n\n")
	fmt.Fprintf(&b, "Written by `scripts/coverage` from the headers of %s, and from the `Implements:` lines of the packages.\n\n", strings.Join(versions, " and "))
	onFake := 0
	for name := range offered {
		if fakeAlone.MatchString(name) {
			onFake++
		}
	}
	fmt.Fprintf(&b, "%d of %d functions are covered: %d are tested on rxe or siw, %d on the fake of package cgotest alone, since neither has them. ",
		len(offered), len(declared), len(offered)-onFake, onFake)
	fmt.Fprintf(&b, "The reasons for the %d others are below.\n\n", len(rest))
	for _, class := range []struct {
		title string
		fake  bool
	}{{"Tested on a device", false}, {"Tested on the fake alone", true}} {
		fmt.Fprintf(&b, "## %s\n\n| C | Go |\n|---|---|\n", class.title)
		for _, name := range slices.Sorted(maps.Keys(offered)) {
			if fakeAlone.MatchString(name) == class.fake {
				fmt.Fprintf(&b, "| `%s` | `%s` |\n", name, strings.Join(offered[name], "`, `"))
			}
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "## Left out\n\n| what | why | functions |\n|---|---|---|\n")
	left := make(map[string][]string)
	for _, name := range rest {
		i := slices.IndexFunc(groups, func(g group) bool { return g.names.MatchString(name) })
		if i < 0 {
			return "", fmt.Errorf("%s is not offered, and has no reason", name)
		}
		left[groups[i].title] = append(left[groups[i].title], name)
	}
	for _, g := range groups {
		if names := left[g.title]; names != nil {
			fmt.Fprintf(&b, "| %s | %s | `%s` |\n", g.title, g.reason, strings.Join(names, "` `"))
		}
	}
	return b.String(), nil
}

// implemented finds which Go names cover which C functions.
func implemented(root string) (map[string][]string, error) {
	offered := make(map[string][]string)
	for _, room := range rooms {
		files, err := filepath.Glob(filepath.Join(root, room, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			for _, decl := range f.Decls {
				d, ok := decl.(*ast.FuncDecl)
				if !ok || d.Doc == nil {
					continue
				}
				for line := range strings.Lines(d.Doc.Text()) {
					prototype, ok := strings.CutPrefix(line, "Implements:")
					if !ok {
						continue
					}
					m := function.FindStringSubmatch(prototype)
					if m == nil {
						return nil, fmt.Errorf("%s: %s: no prototype in %q", file, d.Name.Name, line)
					}
					goName := room + "." + qualified(d)
					if !slices.Contains(offered[m[1]], goName) {
						offered[m[1]] = append(offered[m[1]], goName)
					}
				}
			}
		}
	}
	for _, names := range offered {
		slices.Sort(names)
	}
	return offered, nil
}

// qualified returns the qualified name of a function or method.
func qualified(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "." + d.Name.Name
	}
	return d.Name.Name
}

// function matches a name before its parameters.
var function = regexp.MustCompile(`\b([a-z][a-z0-9_]*)\s*\(`)

// functions lists the functions declared in the installed header, and its version.
func (lib *library) functions() (version string, names []string, err error) {
	out, err := exec.Command("pkg-config", "--modversion", lib.name).Output()
	if err != nil {
		return "", nil, fmt.Errorf("pkg-config knows no %s: %w", lib.name, fs.ErrNotExist)
	}
	version = strings.TrimSpace(string(out))
	dir, err := exec.Command("pkg-config", "--variable=includedir", lib.name).Output()
	if err != nil {
		return "", nil, err
	}
	src, err := os.ReadFile(filepath.Join(cmp.Or(strings.TrimSpace(string(dir)), "/usr/include"), lib.header))
	if err != nil {
		return "", nil, err
	}
	return version, declarations(string(src), lib.prefix), nil
}

var (
	noise     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	cplusplus = regexp.MustCompile(`(?s)#ifdef __cplusplus\n.*?\n#endif`)
	directive = regexp.MustCompile(`(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*`)
)

// declarations lists the functions of a header in order: whatever looks like one outside of all braces and parentheses.
func declarations(src string, prefix *regexp.Regexp) (names []string) {
	src = noise.ReplaceAllString(src, " ")
	src = cplusplus.ReplaceAllString(src, "")
	src = directive.ReplaceAllString(src, "")
	depth := 0
	word := func(c byte) bool {
		return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '{', '(':
			if src[i] == '(' && depth == 0 {
				end := len(strings.TrimRight(src[:i], " \t\n"))
				start := end
				for start > 0 && word(src[start-1]) {
					start--
				}
				if name := src[start:end]; prefix.MatchString(name) && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
			depth++
		case '}', ')':
			depth--
		}
	}
	return names
}
