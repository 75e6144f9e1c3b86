package cmdtest

import (
	"net"
	"time"
)

// DialerFrom returns a dialer that connects from an address of this machine.
func DialerFrom(ip string) *net.Dialer {
	return &net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
}
