package main

import "strings"

// columns lists the columns of the tables about adapters. Immutable.
var columns = []string{"iwarp", "rdmacm on rxe", "rdmacm on siw", "TCP"}

// row says for each column which tests must have passed.
type row struct {
	what  string
	cells [4]string // tests, separated by spaces; a remark in parentheses; or empty, if not applicable
}

// tests returns the tests of a cell, or its remark.
func tests(cell string) (list []string, remark string) {
	if remark, ok := strings.CutPrefix(cell, "("); ok {
		return nil, strings.TrimSuffix(remark, ")")
	}
	return strings.Fields(cell), ""
}

// suite returns the cells of the adapters for subtests of a suite: under one test for iwarp, and under one with a
// subtest for each kind of device.
func suite(iwarp, rdma string, names ...string) (cells [4]string) {
	for i, of := range []string{iwarp, rdma + "/rxe", rdma + "/siw"} {
		for j, name := range names {
			if j > 0 {
				cells[i] += " "
			}
			cells[i] += of + "/" + name
		}
		if len(names) == 0 {
			cells[i] = of
		}
	}
	return cells
}

// with sets the cell for TCP.
func with(cells [4]string, tcp string) [4]string {
	cells[3] = tcp
	return cells
}

func transportSuite(names ...string) [4]string {
	return suite("transport.TestIwarpTransport", "transport.TestRDMATransport", names...)
}

// features lists features that programs use. Immutable.
var features = []row{
	{"all checks that a provider has to pass", [4]string{
		"iwarp.TestConformance", "rdmacm.TestRDMAConformance/rxe/Adaptive", "rdmacm.TestRDMAConformance/siw/Adaptive", "",
	}},
	{"calls of all sizes, inline and in chunks", with(transportSuite("Sizes", "Shapes"), "transport.TestTCPSizes")},
	{"calls and replies longer than a message (position-zero read chunk, reply chunk)", with(transportSuite("Long"), "transport.TestTCPSizes")},
	{"many callers, more than credits", with(transportSuite("Parallel", "Line"), "transport.TestTCPParallel")},
	{"calls in both directions", with(transportSuite("BothWays"), "transport.TestTCPBothWays")},
	{"versions 1 and 2 of RPC-over-RDMA, and falling back", transportSuite("Versions")},
	{"read chunks in replies, RDMA_DONE (RFC 5666)", transportSuite("ReadReplies_V1-3.5-3_V1-3.8-5_V1-3.8-6_V1-5.1-4")},
	{"calls that are given up", with(transportSuite("Cancel"), "transport.TestTCPCancel")},
	{"reconnection while the network fails", with(transportSuite("Faults", "Chaos"), "transport.TestTCPReconnect")},
	{"memory that stays registered", transportSuite("RegisteredMemory")},
	{"remote invalidation", [4]string{"transport.TestIwarpInvalidation", "transport.TestRDMAInvalidation", "(no windows)", ""}},
	{"a peer that attacks memory", suite("transport.TestIwarpMemoryAttacks", "transport.TestRDMAMemoryAttacks")},
	{"a client that breaks the rules", with(transportSuite("HostileClient"), "transport.TestTCPHostilePeers")},
	{"a server written for TCP, through the bridge", with(transportSuite("Bridge"), "transport.TestTCPRecordConn")},
	{"several connections to one server", [4]string{"transport.TestIwarpGroup", "(not tested)", "(not tested)", "(not tested)"}},
	{"no allocation per call", with(transportSuite("AllocsPerCall"), "transport.TestTCPAllocsPerCall")},
	{"NFSv3 client", suite("nfs.TestIwarpNFS", "nfs.TestRDMANFS")},
	{"NFSv4.1 sessions with backchannel", suite("nfs/nfs41.TestIwarpSessions", "nfs/nfs41.TestRDMASessions")},
	{"`rpcrdma`: file commands and `serve`", [4]string{
		"cmd/rpcrdma.TestTreeRoundTrip", "cmd/rpcrdma.TestRDMACommands/rxe", "cmd/rpcrdma.TestRDMACommands/siw", "cmd/rpcrdma.TestTCP",
	}},
	{"IPv6", [4]string{"transport.TestIwarpSilentConnections", "cmd/rpcrdma.TestRDMAIPv6/rxe", "cmd/rpcrdma.TestRDMAIPv6/siw", ""}},
	{"the device is removed while it is used", [4]string{"", "rdmacm.TestRDMADeviceRemoved/rxe", "rdmacm.TestRDMADeviceRemoved/siw", ""}},
	{"recording for Wireshark", [4]string{"fabric/capture.TestConformance", "(not tested)", "(not tested)", "fabric/capture.TestTCP"}},
}

// peers lists other implementations. Immutable.
var peers = []row{
	{"Linux's NFS server, NFSv3: `get`, `put` and checksums", [4]string{
		"cmd/rpcrdma.TestRDMALinuxServer/siw/iwarp", "cmd/rpcrdma.TestRDMALinuxServer/rxe/rdma", "cmd/rpcrdma.TestRDMALinuxServer/siw/rdma", "",
	}},
	{"Linux's NFS server, sessions of NFSv4.1", suite("nfs/nfs41.TestRDMALinuxServer/iwarp", "nfs/nfs41.TestRDMALinuxServer")},
	{"Linux's NFS client mounts `rpcrdma serve`, NFSv3: copies", [4]string{
		"", "cmd/rpcrdma.TestRDMALinuxClient/rxe", "cmd/rpcrdma.TestRDMALinuxClient/siw", "",
	}},
	{"the same: tar, git, fio with verification", mounted("Tar", "Git", "Fio")},
	{"the same: a table of POSIX calls and their errors", mounted("Posix")},
	{"Linux's NFS client, callbacks of NFSv4.1", suite("nfs/nfs41.TestRDMALinuxClient/iwarp", "nfs/nfs41.TestRDMALinuxClient")},
	{"Linux's siw, with our software adapter at the other end", [4]string{"cmd/rpcrdma.TestRDMAAndIWARP", "", "cmd/rpcrdma.TestRDMAAndIWARP", ""}},
	{"rping of rdma-core, as client and as server", [4]string{
		"internal/testing/interop.TestRDMARpingServerIwarp/default internal/testing/interop.TestRDMARpingClientIwarp/default",
		"internal/testing/interop.TestRDMARpingServerVerbs/rxe internal/testing/interop.TestRDMARpingClientVerbs/rxe",
		"internal/testing/interop.TestRDMARpingServerVerbs/siw internal/testing/interop.TestRDMARpingClientVerbs/siw", "",
	}},
	{"Wireshark's dissectors", [4]string{"internal/testing/interop.TestTshark cmd/rpcrdma.TestCaptureTshark", "(not tested)", "(not tested)", ""}},
	{"C programs of rpcgen and libtirpc, as client and as server", [4]string{"", "", "", "internal/testing/interop/rpcgen.TestGenerated/TestClientInC internal/testing/interop/rpcgen.TestGenerated/TestServerInC"}},
	{"go-nfs, unchanged, through the bridge", [4]string{"tools/bridge.TestBridgeOfAnotherServer", "", "", ""}},
	{"rpcbind", [4]string{"cmd/rpcrdma.TestRPCBind", "", "", "rpc/rpcbind.TestDaemon cmd/rpcrdma.TestShowmount"}},
}

// mounted returns cells with tests of a mount: over each device, and from siw to iwarp.
func mounted(names ...string) (cells [4]string) {
	for i, link := range []string{"siw/iwarp", "rxe/rdma", "siw/rdma"} {
		for j, name := range names {
			if j > 0 {
				cells[i] += " "
			}
			cells[i] += "cmd/rpcrdma.TestRDMALinux" + name + "/" + link
		}
	}
	return cells
}

// named returns the set of tests that the tables name.
func named() map[string]bool {
	set := make(map[string]bool)
	for _, table := range [][]row{features, peers} {
		for _, r := range table {
			for _, cell := range r.cells {
				list, _ := tests(cell)
				for _, test := range list {
					set[test] = true
				}
			}
		}
	}
	return set
}
