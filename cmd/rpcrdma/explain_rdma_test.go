//go:build linux && cgo

package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/ibv"
)

// No advice in a container is to load a module, and none outside is about a container.
func TestAdviceInContainers(t *testing.T) {
	missing := &ibv.NoDeviceError{InKernel: []string{"rxe0"}}
	for _, contained := range []bool{false, true} {
		for what, text := range map[string]string{
			"none":    howToGetDevices(contained),
			"manager": managerText(syscall.ENODEV, contained),
			"files":   noDeviceText(missing, contained),
		} {
			if strings.Contains(text, "--device /dev/infiniband") != contained {
				t.Errorf("%s, in a container %v: %s", what, contained, text)
			}
			if strings.Contains(text, "modprobe") && contained {
				t.Errorf("%s, in a container: %s", what, text)
			}
		}
	}
}
