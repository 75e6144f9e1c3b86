package interop

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A capture records the loopback traffic of one TCP port, as a pcap file. It
// needs the right to open a packet socket (packet(7)).
type capture struct {
	fd   int
	port uint16
	file *os.File
}

const (
	etherAll  = 0x0003 // ETH_P_ALL
	etherIPv4 = 0x0800
	outgoing  = 4 // PACKET_OUTGOING: on loopback each packet comes by twice
	linkEther = 1 // LINKTYPE_ETHERNET
)

func hton16(v uint16) uint16 { return v<<8 | v>>8 }

// startCapture begins to record, or skips the test if this process may not.
func startCapture(t *testing.T, port int, path string) *capture {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, int(hton16(etherAll)))
	if errors.Is(err, syscall.EPERM) {
		t.Skip("no right to capture packets: ", err)
	}
	if err != nil {
		t.Fatal("packet socket: ", err)
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	// The socket's queue holds the whole conversation.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 256<<20); err != nil {
		t.Skip("no right to enlarge the capture's buffer: ", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: hton16(etherAll), Ifindex: lo.Index}); err != nil {
		t.Fatal("bind: ", err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &capture{fd: fd, port: uint16(port), file: file}
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
		size, from, err := syscall.Recvfrom(c.fd, buf, syscall.MSG_DONTWAIT|syscall.MSG_TRUNC)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal("capture: ", err)
		}
		if size > len(buf) {
			t.Fatalf("capture: packet of %d bytes", size)
		}
		ll, ok := from.(*syscall.SockaddrLinklayer)
		if !ok || ll.Pkttype == outgoing || !c.wants(buf[:size]) {
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
	// Nothing may have been lost: a gap would look like an error of ours.
	var stats [2]uint32
	if err := packetStats(c.fd, &stats); err != nil {
		t.Fatal("capture statistics: ", err)
	}
	if stats[1] != 0 {
		t.Fatalf("the capture lost %d packets", stats[1])
	}
	return n
}

// packetStats reads PACKET_STATISTICS: packets seen, and dropped.
func packetStats(fd int, stats *[2]uint32) error {
	const solPacket, packetStatistics = 263, 6
	size := uint32(unsafe.Sizeof(*stats))
	_, _, e := syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), solPacket, packetStatistics,
		uintptr(unsafe.Pointer(stats)), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return nil
}

func (c *capture) close() {
	syscall.Close(c.fd)
	c.file.Close()
}

// wants tells whether an Ethernet frame is IPv4 TCP from or to the port.
func (c *capture) wants(b []byte) bool {
	if len(b) < 14+20+20 || binary.BigEndian.Uint16(b[12:]) != etherIPv4 || b[14+9] != syscall.IPPROTO_TCP {
		return false
	}
	tcp := b[14+4*int(b[14]&15):]
	return len(tcp) >= 4 && (binary.BigEndian.Uint16(tcp) == c.port || binary.BigEndian.Uint16(tcp[2:]) == c.port)
}
