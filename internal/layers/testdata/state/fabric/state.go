// Package fabric has package-level variables of every kind. Those that rule "state" must find have a comment with a
// part of the finding.
package fabric

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/iwarp"
)

// Types that contain something mutable, at some depth.
type (
	cache struct {
		mu   sync.Mutex
		list [][]byte
	}
	nested  struct{ inner [2]cache }
	foreign struct{ iwarp.Table }
	linked  struct {
		next *linked
		n    int
	}
	slot[T any] struct{ p atomic.Pointer[T] }
	gauge       int
)

func (g *gauge) add(n int) { *g += gauge(n) }
func (g gauge) value() int { return int(g) }

var (
	lock      sync.Mutex                  // want "contains sync.Mutex"
	counter   atomic.Int64                // want "contains atomic.Int64"
	signal    chan struct{}               // want "contains a channel"
	byField   cache                       // want "contains sync.Mutex"
	byLiteral = cache{list: nil}          // want "contains sync.Mutex"
	byPointer = &cache{}                  // want "contains sync.Mutex"
	byDepth   nested                      // want "contains sync.Mutex"
	byImport  foreign                     // want "contains atomic.Uint32"
	byMap     = map[string]nested{}       // want "contains sync.Mutex"
	generic   slot[int]                   // want "contains atomic.Pointer"
	ErrOnce   = onceError{}               // want "contains sync.Once"
	pointed   = linked{next: nil, n: 1}   // want "a table whose comment lacks"
	computed  = errors.Join(ErrGone)      // want "a table whose comment lacks"
	assigned  = map[string]int{}          // want "written after initialization"
	appended  []int                       // want "written after initialization"
	indexed   = []string{"a"}             // want "written after initialization"
	cleared   = map[string]int{}          // want "written after initialization"
	addressed int                         // want "written after initialization"
	counted   gauge                       // want "method add has a pointer receiver"
	errLast   = errors.New("none so far") // want "written after initialization"
)

// A promise covers neither a lock nor a variable that is written.
var (
	promisedLock  = &cache{}         // immutable // want "contains sync.Mutex"
	promisedTable = []string{"a"}    // immutable // want "written after initialization"
	Exported      = []string{"a"}    // immutable // want "written after initialization"
	promisedValue = errors.Join(nil) // immutable
)

// Variables that never change.
var (
	_       error = onceError{}
	ErrGone       = errors.New("gone")
	names         = [...]string{0: "a", 1: "b"}
	sizes         = map[string]linkedFree{"a": {1}}
	zeros   [4]byte
	level   gauge
)

type linkedFree struct{ n int }

type onceError struct{ once sync.Once }

func (onceError) Error() string { return "" }

func use(local []string) {
	assigned["a"] = 1
	appended = append(appended, 1)
	indexed[0] = "b"
	clear(cleared)
	fill(&addressed)
	counted.add(level.value())
	errLast = ErrGone
	promisedTable[0] = "b"
	names := local // another variable
	names[0] = "c"
}

func fill(*int) {}
