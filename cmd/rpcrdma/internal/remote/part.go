package remote

import (
	"crypto/rand"
	"strings"
)

// Names of incomplete files.
const (
	partPrefix = ".rpcrdma-"
	partRandom = 12 // characters
	partSuffix = ".part"
)

// PartName returns a name for an incomplete file, so that a killed get or put leaves nothing incomplete under the final
// name.
func PartName() string { return partPrefix + strings.ToLower(rand.Text()[:partRandom]) + partSuffix }

// IsPart reports whether a name was made by PartName.
func IsPart(name string) bool {
	random, ok := strings.CutPrefix(name, partPrefix)
	random, ok2 := strings.CutSuffix(random, partSuffix)
	return ok && ok2 && len(random) == partRandom && !strings.ContainsFunc(random, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
}
