package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// mountOptions are the options with which the kernel's client mounts a server.
func mountOptions(rdmaPort, mountPort string) string {
	return "vers=3,proto=rdma,port=" + rdmaPort + ",mountproto=tcp,mountport=" + mountPort + ",nolock"
}

// mount is called in docs/serving.md with the options that the tests use.
func TestMountOptionsOfPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/serving.md")
	if os.IsNotExist(err) {
		t.Skip("the documentation is in the repository, and this module is not")
	}
	testutil.Must(t, err)
	if want := "mount -t nfs -o " + mountOptions("20049", "2049") + " 192.0.2.1:/data /mnt"; !strings.Contains(string(page), want) {
		t.Errorf("the page lacks %q", want)
	}
}
