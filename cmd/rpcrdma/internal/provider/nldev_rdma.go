//go:build linux && cgo

package provider

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// The kernel's netlink interface for RDMA devices, include/uapi/rdma/rdma_netlink.h: what rdma-link(8) and the summary
// of rdma-resource(8) show. Neither requires privileges.
const (
	nldevClient  = 5 << 10 // RDMA_NL_NLDEV, above the number of the command
	nldevPortGet = 5
	nldevResGet  = 9

	attrDevIndex     = 1
	attrPort         = 3
	attrSummary      = 15
	attrEntry        = 16
	attrEntryName    = 17
	attrEntryCurrent = 18
	attrNdevName     = 51

	nlaTypeMask = 0x3fff // without the bits for nesting and byte order
)

// nldevError is an error from the kernel.
type nldevError struct {
	command string // as rdma(8) has it
	err     error  // a syscall.Errno, or errNetlink
}

func (e *nldevError) Error() string { return fmt.Sprintf("rdma %s: %v", e.command, e.err) }

func (e *nldevError) Unwrap() error { return e.err }

// errNetlink is the error for a malformed answer.
var errNetlink = errors.New("invalid answer of the kernel")

// inUse queries the object counts of a device, by its index.
func inUse(device int) (*InUse, error) {
	u := new(InUse)
	counts := map[string]*uint64{"pd": &u.PD, "cq": &u.CQ, "qp": &u.QP, "cm_id": &u.CMID, "mr": &u.MR, "ctx": &u.Contexts, "srq": &u.SRQ}
	err := nldev("resource", nldevResGet, device, 0, func(typ uint16, value []byte) error {
		if typ != attrSummary {
			return nil
		}
		return eachAttr(value, func(typ uint16, entry []byte) error {
			name, current := "", uint64(0)
			err := eachAttr(entry, func(typ uint16, value []byte) error {
				switch {
				case typ == attrEntryName:
					name = unix.ByteSliceToString(value)
				case typ == attrEntryCurrent && len(value) == 8:
					current = binary.NativeEndian.Uint64(value)
				}
				return nil
			})
			if c := counts[name]; c != nil && typ == attrEntry {
				*c = current
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return u, nil
}

// netdevOf queries the network device of a port. It returns "" if the port has none.
func netdevOf(device, port int) (name string, err error) {
	err = nldev("link", nldevPortGet, device, port, func(typ uint16, value []byte) error {
		if typ == attrNdevName {
			name = unix.ByteSliceToString(value)
		}
		return nil
	})
	return name, err
}

// nldev queries a device, or one of its ports, and calls f for each attribute of the answer.
func nldev(name string, command uint16, device, port int, f func(typ uint16, value []byte) error) error {
	answer, err := askKernel(command, device, port)
	if err == nil {
		err = eachAttr(answer, f)
	}
	if err != nil {
		return &nldevError{name, err}
	}
	return nil
}

// askKernel sends a request and returns the attributes of the answer.
func askKernel(command uint16, device, port int) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return nil, err
	}
	request := make([]byte, unix.SizeofNlMsghdr)
	for _, a := range []struct{ typ, value int }{{attrDevIndex, device}, {attrPort, port}} {
		if a.typ == attrPort && port == 0 {
			continue
		}
		request = binary.NativeEndian.AppendUint16(request, 8) // length, including this header
		request = binary.NativeEndian.AppendUint16(request, uint16(a.typ))
		request = binary.NativeEndian.AppendUint32(request, uint32(a.value))
	}
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], nldevClient|command)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	answer := make([]byte, 64<<10)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return nil, err
	}
	return attributesOf(answer[:n])
}

// attributesOf returns the attributes of a netlink message, or its error.
func attributesOf(message []byte) ([]byte, error) {
	if len(message) < unix.SizeofNlMsghdr {
		return nil, errNetlink
	}
	length := binary.NativeEndian.Uint32(message)
	if length < unix.SizeofNlMsghdr || int(length) > len(message) {
		return nil, errNetlink
	}
	body := message[unix.SizeofNlMsghdr:length]
	if binary.NativeEndian.Uint16(message[4:]) == unix.NLMSG_ERROR {
		if len(body) < 4 {
			return nil, errNetlink
		}
		return nil, syscall.Errno(-int32(binary.NativeEndian.Uint32(body)))
	}
	return body, nil
}

// eachAttr calls f for each attribute of a list.
func eachAttr(list []byte, f func(typ uint16, value []byte) error) error {
	const header = 4
	for len(list) >= header {
		length := int(binary.NativeEndian.Uint16(list))
		if length < header || length > len(list) {
			return errNetlink
		}
		if err := f(binary.NativeEndian.Uint16(list[2:])&nlaTypeMask, list[header:length]); err != nil {
			return err
		}
		list = list[min((length+3)&^3, len(list)):]
	}
	return nil
}
