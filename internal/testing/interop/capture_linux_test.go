package interop

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A capture records the loopback traffic of one TCP port, as a pcap file. It needs permission
// to open a packet socket (packet(7)).
type capture struct {
	fd   int
	file *os.File
}

const (
	etherAll  = 0x0003 // ETH_P_ALL
	etherIPv4 = 0x0800
	outgoing  = 4 // PACKET_OUTGOING: on loopback each packet comes by twice
	linkEther = 1 // LINKTYPE_ETHERNET
)

func hton16(v uint16) uint16 { return v<<8 | v>>8 }

// startCapture starts a capture, or skips the test without permission.
func startCapture(t *testing.T, port int, path string) *capture {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // nothing comes before Bind
	if errors.Is(err, unix.EPERM) {
		t.Skip("no right to capture packets: ", err)
	}
	if err != nil {
		t.Fatal("packet socket: ", err)
	}
	started := false
	defer func() {
		if !started {
			unix.Close(fd)
		}
	}()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	// Other processes may use loopback at high rates: the kernel filters their packets.
	filter := onePort(uint16(port))
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		t.Fatal("filter: ", err)
	}
	// The socket's queue must hold the whole conversation.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20); err != nil {
		t.Skip("no right to enlarge the capture's buffer: ", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: hton16(etherAll), Ifindex: lo.Index}); err != nil {
		t.Fatal("bind: ", err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &capture{fd: fd, file: file}
	header := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	header = binary.LittleEndian.AppendUint16(header, 2)
	header = binary.LittleEndian.AppendUint16(header, 4)
	header = binary.LittleEndian.AppendUint32(header, 0)
	header = binary.LittleEndian.AppendUint32(header, 0)
	header = binary.LittleEndian.AppendUint32(header, 1<<18)
	header = binary.LittleEndian.AppendUint32(header, linkEther)
	if _, err := file.Write(header); err != nil {
		t.Fatal(err)
	}
	started = true
	return c
}

// drain writes what has been captured so far to the file, and returns the number
// of packets. All packets of a loopback conversation are in the socket's queue
// when the conversation is over.
func (c *capture) drain(t *testing.T) int {
	t.Helper()
	buf := make([]byte, 1<<18)
	n := 0
	for {
		size, from, err := unix.Recvfrom(c.fd, buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal("capture: ", err)
		}
		if size > len(buf) {
			t.Fatalf("capture: packet of %d bytes", size)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || ll.Pkttype == outgoing {
			continue
		}
		now := time.Now()
		record := binary.LittleEndian.AppendUint32(nil, uint32(now.Unix()))
		record = binary.LittleEndian.AppendUint32(record, uint32(now.Nanosecond()/1000))
		record = binary.LittleEndian.AppendUint32(record, uint32(size))
		record = binary.LittleEndian.AppendUint32(record, uint32(size))
		if _, err := c.file.Write(append(record, buf[:size]...)); err != nil {
			t.Fatal(err)
		}
		n++
	}
	// No packet may be lost: a gap would look like an error of this module.
	stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		t.Fatal("capture statistics: ", err)
	}
	if stats.Drops != 0 {
		t.Fatalf("the capture lost %d packets", stats.Drops)
	}
	return n
}

func (c *capture) close() {
	unix.Close(c.fd)
	c.file.Close()
}

// onePort is a packet filter (socket(7), SO_ATTACH_FILTER) for IPv4 TCP from or to
// a port, in Ethernet frames.
func onePort(port uint16) []unix.SockFilter {
	const (
		loadHalf  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		loadByte  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		loadAfter = unix.BPF_LD | unix.BPF_H | unix.BPF_IND // after the IP header
		headerLen = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
		equal     = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		give      = unix.BPF_RET | unix.BPF_K
	)
	return []unix.SockFilter{
		{Code: loadHalf, K: 12},
		{Code: equal, K: etherIPv4, Jf: 7},
		{Code: loadByte, K: 14 + 9},
		{Code: equal, K: unix.IPPROTO_TCP, Jf: 5},
		{Code: headerLen, K: 14},
		{Code: loadAfter, K: 14},
		{Code: equal, K: uint32(port), Jt: 3},
		{Code: loadAfter, K: 14 + 2},
		{Code: equal, K: uint32(port), Jt: 1},
		{Code: give, K: 0},
		{Code: give, K: 1 << 18},
	}
}
