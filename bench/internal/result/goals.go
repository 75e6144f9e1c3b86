package result

// A Goal is a performance goal of this module. Floors must be kept; goals should be reached. A ratio is that of the
// medians of alternating runs on the same machine with the same payload.
type Goal struct {
	Number      int
	What        string
	Floor, Want string // as text; rows contain the numbers
	Devices     bool   // for RDMA devices, in the virtual machine or real ones
	Software    bool   // for the software adapter
}

// Goals lists all goals. Immutable.
var Goals = []Goal{
	{1, "RPC NULL polled, time over a polled ping-pong in C", "1.6", "1.3", true, false},
	{2, "RPC NULL with events, time over a ping-pong in C with events", "1.5", "1.25", true, false},
	{3, "RPC NULL adaptive, time over the better of polled and with events, idle CPUs", "1.5", "1.2", true, false},
	{4, "the same with one hog per CPU, and at GOMAXPROCS=1", "2.0", "1.3", true, false},
	{5, "what a call adds to the ping-pong in C on hardware, µs", "2.0", "1.0", true, false},
	{6, "calls per second at depth 1, 8, 32, 128 over a pipeline in C", "0.6", "0.8", true, false},
	{7, "1 MiB through a write chunk over RDMA Writes in C, through a read chunk over Reads", "0.85", "0.95", true, false},
	{8, "the same with a memory window for each call, 1 MiB / 64 KiB", "0.85 / 0.6", "0.95 / 0.75", true, false},
	{9, "the same with both ends registering for each call", "-", "0.6", true, false},
	{10, "software iWARP, 1 MiB Writes over a TCP copy loop, CRC off / on; in chunks of calls", "0.75 / 0.65; 0.8", "0.95 / 0.85; 0.95", false, true},
	{11, "software iWARP, 1 MiB Writes over ib_write_bw on kernel siw", "1.0", "1.2", true, false},
	{12, "software iWARP, 1 MiB Writes in FPDUs of 1428 bytes over a TCP copy loop", "0.4", "0.55", false, true},
	{13, "software iWARP, RPC NULL, time over a TCP echo of 64 B", "1.6", "1.25", false, true},
	{14, "software iWARP, RPC NULL, time over net/rpc; over gRPC", "0.8; 0.5", "0.55; 0.3", false, true},
	{15, "software iWARP, calls per second, 32 outstanding, over TCP by hand; net/rpc; gRPC", "0.6; 2; 3", "0.8; 3.5; 5", false, true},
	{16, "software iWARP, 1 MiB put over gRPC", "2.5", "3.5", false, true},
	{17, "RPC NULL on rxe, time over gRPC on the same machine", "0.6", "0.35", true, false},
	{18, "allocations per call, client and inline server", "0", "0", true, true},
	{19, "calls into C for an RPC, each side, depth 1 / 32", "4 / 1", "2 / 0.25", true, false},
	{20, "doorbells for an RPC, each side, depth 32", "1", "0.2", true, false},
	{21, "doorbells for a reply with 1 MiB", "2", "1", true, true},
	{22, "memory of an idle connection, each side, KiB, devices / software iWARP", "64 / 128", "24 / 72", true, true},
	{23, "goroutines of an idle connection, each side, devices / software iWARP", "1 / 2", "0 / 1", true, true},
	{24, "calls per second with 128 outstanding on 1000 connections over on one; over a TCP echo on as many", "0.5; 0.8", "0.8; 1.2", true, true},
	{25, "p99 over p50 at depth 32, idle machine", "5", "3", true, true},
	{26, "time of 1 B to 8 MiB over RTT + S/BW, worst; step at the threshold between inline and chunks", "1.4; 2.0", "1.2; 1.5", true, true},
	{27, "calls per second at 4 times the credits over at them", "0.9", "0.98", true, true},
	{28, "p99 of a call with a live heap of 1 GiB and continuous garbage collection over without", "2", "1.5", false, true},
	{29, "CPU of 100 idle connections, % of one", "1", "0.1", true, true},
	{30, "connections per second over a loop of rdma_cm in C; over net.Dial and MPA", "0.6", "0.85", true, true},
	{31, "software iWARP, read chunks of 256 KiB and 2 MiB, 4 outstanding, over write chunks", "0.9", "1.0", false, true},
	{32, "software iWARP, a call that is given up and its late reply, time over a call", "20", "5", false, true},
	{33, "shared memory, RPC NULL over a ping-pong by hand; Unix echo; gRPC; ttrpc; net/rpc; 1 MiB read over memmove; Unix copy loop; echo over shmipc-go", "-; 0.8; 0.3; 0.4; 0.5; 0.1; 1; -", "1.6; 0.3; 0.15; 0.2; 0.25; 0.8; 1.5; 0.5 to 0.8", false, true},
	{34, "software iWARP, echo of 16 KiB to 4 MiB that is not placed, over gRPC; over transport.TCP", "1; -", "2; 1", false, true},
	{35, "gRPC services, over grpc-go: unary call; 32 outstanding; 1 MiB, fresh, in own memory; stream one way; in turns; no long field; shared memory, unary, in turns", "1; 1.5; 1; 1; 1.2; 1.8; 0.7; 0.8; 1.2", "0.5; 3; 2; 3; 2; 0.5; 1; 0.3; 0.5", false, true},
	{36, "software iWARP with TLS, over crypto/tls: NULL over an echo; 1 MiB read over a copy loop, one at a time; 8 outstanding", "1.6; 0.8; 0.8", "1.3; 0.9; 0.9", false, true},
}

// GoalOf returns a goal by its number.
func GoalOf(number int) (Goal, bool) {
	if number < 1 || number > len(Goals) {
		return Goal{}, false
	}
	return Goals[number-1], true
}
