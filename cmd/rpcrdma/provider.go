package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// providers are the RDMA adapters that this build has, the default first.
// Immutable.
var providers = []struct {
	name string
	make func() (fabric.Provider, error)
}{
	{"iwarp", func() (fabric.Provider, error) { return iwarp.New(iwarp.Config{}), nil }},
}

// A providerFlag is the value of --provider.
type providerFlag string

func (f *providerFlag) String() string { return string(*f) }

// Type is what the help calls the value.
func (f *providerFlag) Type() string { return "NAME" }

func (f *providerFlag) Set(name string) error {
	var names []string
	for _, p := range providers {
		names = append(names, p.name)
	}
	if !slices.Contains(names, name) {
		return fmt.Errorf("this build has %s", strings.Join(names, ", "))
	}
	*f = providerFlag(name)
	return nil
}

// provider makes the provider that was asked for.
func (f providerFlag) provider() (fabric.Provider, error) {
	for _, p := range providers {
		if p.name == string(f) {
			return p.make()
		}
	}
	return providers[0].make()
}
