package main

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// TestDocument: scripts/coverage would reproduce docs/reports/coverage.md.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile(root + "/docs/reports/coverage.md")
	if err != nil {
		t.Fatal(err)
	}
	have := string(b)

	// Covered functions are known without headers.
	offered, err := implemented(root)
	if err != nil {
		t.Fatal(err)
	}
	covered, _, _ := strings.Cut(have, "## Left out")
	rows := regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| `(.*)` \\|$").FindAllStringSubmatch(covered, -1)
	listed := make(map[string][]string)
	for _, r := range rows {
		listed[r[1]] = strings.Split(r[2], "`, `")
	}
	if !maps.EqualFunc(offered, listed, slices.Equal) {
		t.Errorf("docs/reports/coverage.md is stale, run scripts/coverage:\ncode %v\ndocument %v", offered, listed)
	}

	for _, lib := range libraries {
		version, _, err := lib.functions()
		if errors.Is(err, fs.ErrNotExist) {
			t.Skipf("the headers of %s are not installed: %v", lib.name, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := lib.name + " " + version; !strings.Contains(have, want+" and") && !strings.Contains(have, want+",") {
			t.Skipf("the document is of another version than %s", want)
		}
	}
	want, err := report(root)
	if err != nil {
		t.Fatal(err)
	}
	if have != want {
		t.Error("docs/reports/coverage.md is stale, run scripts/coverage")
	}
}

func TestDeclarations(t *testing.T) {
	const header = `
#ifdef __cplusplus
extern "C" {
#endif
/* ibv_in_comment(int x); */
enum ibv_kind { IBV_A, IBV_B };
struct ibv_thing {
	enum ibv_kind (*ibv_member)(struct ibv_thing *t);
};
#define ibv_macro(a, b) \
	ibv_other(a, b)
struct ibv_thing *ibv_make(struct ibv_thing *like,
			   int (*ibv_callback)(int n));
static inline int ibv_use (struct ibv_thing *t)
{
	return ibv_inner(t);
}
int __attribute_const ibv_attributed(enum ibv_kind kind);
int ibv_use(struct ibv_thing *t);
int other_function(void);
#ifdef __cplusplus
}
#endif
`
	got := declarations(header, regexp.MustCompile(`^ibv_`))
	if want := []string{"ibv_make", "ibv_use", "ibv_attributed"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCanFail: a function without a reason, and an Implements line without a
// function.
func TestCanFail(t *testing.T) {
	offered := map[string][]string{"ibv_make": {"ibv.Make"}}
	text, err := document([]string{"libibverbs 1"}, []string{"ibv_make", "ibv_static_providers"}, offered)
	if err != nil || !strings.Contains(text, "1 of 2 functions") || !strings.Contains(text, "| `ibv_make` | `ibv.Make` |") || !strings.Contains(text, "`ibv_static_providers`") {
		t.Errorf("%v\n%s", err, text)
	}
	for _, declared := range [][]string{{"ibv_make", "ibv_unheard_of"}, {"ibv_static_providers"}} {
		if text, err := document([]string{"libibverbs 1"}, declared, offered); err == nil {
			t.Errorf("%v: %s", declared, text)
		}
	}
}

// TestGroups: every reason is still needed.
func TestGroups(t *testing.T) {
	var all []string
	for _, lib := range libraries {
		_, names, err := lib.functions()
		if errors.Is(err, fs.ErrNotExist) {
			t.Skipf("the headers of %s are not installed: %v", lib.name, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, names...)
	}
	for _, g := range groups {
		if !slices.ContainsFunc(all, g.names.MatchString) {
			t.Errorf("no function is left out as %q", g.title)
		}
	}
}
