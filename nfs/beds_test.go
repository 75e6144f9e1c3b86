package nfs

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// A bed is what the tests of both ends together run on: a provider, and the host at
// which it can be reached.
type bed struct {
	provider fabric.Provider
	host     string
	live     func() (conns, mrs, mws int) // what the provider holds open
}

// suite is what runs on each bed.
var suite = []struct {
	name string
	run  func(*testing.T, *bed)
}{
	{"Procedures", testProcedures},
	{"Read", testRead},
	{"ReadInline", testReadInline},
	{"Write", testWrite},
	{"Credential", testCredential},
	{"HostileReplies", testHostileReplies},
	{"Jukebox", testJukebox},
	{"CallErrors", testCallErrors},
	{"Pool", testPool},
	{"MountOverRDMA", testMountOverRDMA},
	{"NoExport", testNoExport},
	{"MountWithoutExport", testMountWithoutExport},
	{"MountLongList", testMountLongList},
	{"MountFallback", testMountFallback},
	{"MountFallbackErrors", testMountFallbackErrors},
	{"Stat", testStat},
	{"ReadDir", testReadDir},
	{"HostileDirectory", testHostileDirectory},
	{"Walk", testWalk},
	{"PathChanges", testPathChanges},
	{"Download", testDownload},
	{"Parallel", testParallel},
	{"ReadAt", testReadAt},
	{"Upload", testUpload},
	{"VerifierChange", testVerifierChange},
	{"CommitError", testCommitError},
	{"TransferCancel", testTransferCancel},
}

func runSuite(t *testing.T, b *bed) {
	for _, tt := range suite {
		t.Run(tt.name, func(t *testing.T) {
			leak.Check(t)
			t.Cleanup(func() { // after the cleanups of the test
				if conns, mrs, mws := b.live(); conns != 0 || mrs != 0 || mws != 0 {
					t.Errorf("left open: %d connections, %d regions, %d windows", conns, mrs, mws)
				}
			})
			tt.run(t, b)
		})
	}
}

func TestIwarpNFS(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	runSuite(t, &bed{provider: p, host: "127.0.0.1", live: func() (conns, mrs, mws int) {
		l := p.Live()
		return l.Conns, l.MRs, l.MWs
	}})
}

// onDevice is a device of the kind "rxe" or "siw", if there is one.
func onDevice(t testing.TB, kind string) *bed {
	t.Helper()
	host := device(t, kind)
	p, err := rdmacm.New(rdmacm.Config{})
	if errors.Is(err, rdmacm.ErrNotBuilt) && !required(kind) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &bed{provider: p, host: host, live: func() (conns, mrs, mws int) {
		l := p.Live()
		return l.Conns, l.MRs, l.MWs
	}}
}

// device returns an address of an RDMA device of the kind, as the environment tells.
func device(t testing.TB, kind string) string {
	t.Helper()
	name := "RPCRDMA_" + strings.ToUpper(kind) + "_ADDR"
	if addr := os.Getenv(name); addr != "" {
		return addr
	}
	if required(kind) {
		t.Fatalf("RPCRDMA_REQUIRE names %s, and %s is not set", kind, name)
	}
	if devices, _ := os.ReadDir("/sys/class/infiniband"); len(devices) == 0 {
		t.Skip("no RDMA device on this machine (/sys/class/infiniband is empty): run it with scripts/vm")
	}
	t.Skipf("%s does not tell an address of a device of the kind %s", name, kind)
	return ""
}

func required(kind string) bool {
	return slices.Contains(strings.Split(os.Getenv("RPCRDMA_REQUIRE"), ","), kind)
}
