//go:build linux && cgo

package ibv

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A GUID is a globally unique identifier of a device, in network byte order.
type GUID [8]byte

func (g GUID) String() string {
	s := hex.EncodeToString(g[:])
	return s[0:4] + ":" + s[4:8] + ":" + s[8:12] + ":" + s[12:16]
}

// A NodeType is the type of a device, see enum ibv_node_type.
type NodeType int32

// Types of devices.
const (
	NodeUnknown     NodeType = -1
	NodeCA          NodeType = 1
	NodeSwitch      NodeType = 2
	NodeRouter      NodeType = 3
	NodeRNIC        NodeType = 4
	NodeUSNIC       NodeType = 5
	NodeUSNICUDP    NodeType = 6
	NodeUnspecified NodeType = 7
)

// String returns the library's description.
//
// Implements: const char *ibv_node_type_str(enum ibv_node_type node_type)
func (t NodeType) String() string { return cgo.NodeTypeString(int32(t)) }

// A Transport is the protocol family of a device, see enum ibv_transport_type.
type Transport int32

// Protocol families. RoCE belongs to TransportIB.
const (
	TransportUnknown     Transport = -1
	TransportIB          Transport = 0
	TransportIWARP       Transport = 1
	TransportUSNIC       Transport = 2
	TransportUSNICUDP    Transport = 3
	TransportUnspecified Transport = 4
)

func (t Transport) String() string {
	switch t {
	case TransportUnknown:
		return "IBV_TRANSPORT_UNKNOWN"
	case TransportIB:
		return "IBV_TRANSPORT_IB"
	case TransportIWARP:
		return "IBV_TRANSPORT_IWARP"
	case TransportUSNIC:
		return "IBV_TRANSPORT_USNIC"
	case TransportUSNICUDP:
		return "IBV_TRANSPORT_USNIC_UDP"
	case TransportUnspecified:
		return "IBV_TRANSPORT_UNSPECIFIED"
	}
	return fmt.Sprintf("ibv_transport_type %d", int32(t))
}

// A DeviceInfo describes a device without opening it.
type DeviceInfo struct {
	Name      string // such as "mlx5_0" or "rxe0"
	GUID      GUID
	NodeType  NodeType
	Transport Transport
	Index     int // the kernel's number of the device, -1 if unknown
}

func infoOf(lib cgo.Library, d *cgo.Device) DeviceInfo {
	i := lib.DeviceInfo(d)
	return DeviceInfo{Name: i.Name, GUID: i.GUID, NodeType: NodeType(i.NodeType), Transport: Transport(i.Transport), Index: int(i.Index)}
}

// Devices lists the devices that can be opened. If no device can be opened, the error is a [*NoDeviceError].
//
// Implements: struct ibv_device **ibv_get_device_list(int *num_devices)
// Implements: void ibv_free_device_list(struct ibv_device **list)
// Implements: const char *ibv_get_device_name(struct ibv_device *device)
// Implements: __be64 ibv_get_device_guid(struct ibv_device *device)
// Implements: int ibv_get_device_index(struct ibv_device *device)
func Devices() ([]DeviceInfo, error) { return devices(cgo.RDMACore{}) }

func devices(lib cgo.Library) ([]DeviceInfo, error) {
	var infos []DeviceInfo
	err := eachDevice(lib, func(d *cgo.Device) bool { infos = append(infos, infoOf(lib, d)); return true })
	if err != nil {
		return nil, err
	}
	if len(infos) == 0 {
		return nil, &NoDeviceError{InKernel: inKernel()}
	}
	return infos, nil
}

// eachDevice calls f with every device until f returns false. A device is valid only during the call.
func eachDevice(lib cgo.Library, f func(*cgo.Device) bool) error {
	list, free, errno := lib.GetDeviceList()
	if errno == syscall.ENOSYS {
		return nil // a kernel without RDMA has no devices
	}
	if errno != 0 {
		return &Error{Call: "ibv_get_device_list", Err: errno}
	}
	defer free()
	for _, d := range list {
		if !f(d) {
			break
		}
	}
	return nil
}

// Directories where the kernel lists its RDMA devices and their character devices.
const (
	sysDevices = "/sys/class/infiniband"
	sysVerbs   = "/sys/class/infiniband_verbs"
	devVerbs   = "/dev/infiniband"
)

// inKernel lists the kernel's devices, including those without a supporting library.
func inKernel() (names []string) {
	entries, _ := os.ReadDir(sysDevices)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// verbsPath returns the character device of a device, or the directory of all such devices.
func verbsPath(name string) string {
	entries, _ := os.ReadDir(sysVerbs)
	for _, e := range entries {
		if b, err := os.ReadFile(filepath.Join(sysVerbs, e.Name(), "ibdev")); err == nil && strings.TrimSpace(string(b)) == name {
			return filepath.Join(devVerbs, e.Name())
		}
	}
	return devVerbs
}
