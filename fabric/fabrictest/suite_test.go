package fabrictest

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// The suite passes on the model.
func TestModel(t *testing.T) {
	cfg := newModel("").config()
	cfg.Complete = true
	Run(t, cfg)
}

var _ fabric.Provider = (*modelProvider)(nil)
