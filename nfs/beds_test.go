package nfs

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
)

// suite has the tests that run on each test bed.
var suite = []struct {
	name string
	run  func(*testing.T, *testbed.Bed)
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
	{"Connections", testConnections},
	{"ReadAt", testReadAt},
	{"Upload", testUpload},
	{"VerifierChange", testVerifierChange},
	{"UploadWindows", testUploadWindows},
	{"CommitError", testCommitError},
	{"TransferCancel", testTransferCancel},
	{"TransferOffset", testTransferOffset},
	{"Changed", testChanged},
}

func runSuite(t *testing.T, b *testbed.Bed) {
	for _, tt := range suite {
		t.Run(tt.name, func(t *testing.T) {
			b.Check(t)
			tt.run(t, b)
		})
	}
}

func TestIwarpNFS(t *testing.T) { runSuite(t, testbed.Iwarp()) }
