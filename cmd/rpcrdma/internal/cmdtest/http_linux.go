package cmdtest

import (
	"net"
	"time"
)

// DialerFrom returns a dialer that connects from a given local address.
func DialerFrom(ip string) *net.Dialer {
	return &net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
}
