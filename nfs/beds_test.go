package nfs

import (
	"errors"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/leak"
	"github.com/rpcrdma/rpcrdma/internal/rdmatest"
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
	{"Pending", testPending},
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
	{"UploadWindows", testUploadWindows},
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
	host := rdmatest.Device(t, kind)
	p, err := rdmacm.New(rdmacm.Config{})
	if errors.Is(err, rdmacm.ErrNotBuilt) {
		rdmatest.Lacking(t, kind, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return &bed{provider: p, host: host, live: func() (conns, mrs, mws int) {
		l := p.Live()
		return l.Conns, l.MRs, l.MWs
	}}
}
