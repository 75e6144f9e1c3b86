package fabrictest_test

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// A provider's own test runs the suite.
func ExampleRun() {
	test := func(t *testing.T) {
		fabrictest.Run(t, fabrictest.Config{
			New: func(testing.TB) fabric.Provider { return iwarp.New(iwarp.Config{}) },
		})
	}
	_ = test
}

// A test of a program has the third registration of memory fail.
func ExampleFaulty() {
	test := func(t *testing.T) {
		provider := fabrictest.Faulty(iwarp.New(iwarp.Config{}), fabrictest.Plan{{At: fabrictest.AtRegMR, N: 3}})
		client, server := fabrictest.Pair(t, provider, fabrictest.Setup{})
		_, _ = client, server
	}
	_ = test
}
