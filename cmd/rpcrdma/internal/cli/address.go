package cli

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// IsHost reports whether s is a name or an address. An IPv6 address may have brackets.
func IsHost(s string) bool {
	_, err := netip.ParseAddr(BareHost(s))
	return err == nil && strings.HasPrefix(s, "[") == strings.HasSuffix(s, "]") || s != "" && !strings.ContainsAny(s, ":[]/@?#% \t\r\n\x00")
}

// BareHost returns a host without the brackets of an IPv6 address.
func BareHost(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
}

// Default ports of addresses that do not use nfs.Port.
const (
	DefaultTCPPort     = 2049 // of NFS over TCP
	DefaultMetricsPort = 9649 // of metrics and status over HTTP
)

// portLetters are the characters of port numbers and names.
const portLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"

// WithPort returns HOST or HOST:PORT as HOST:PORT. Port 0, and an empty host, are allowed for a
// listener.
func WithPort(s string, port int, listener bool) (string, error) {
	host, given, err := net.SplitHostPort(s)
	switch {
	case err != nil && s != "" && strings.Trim(s, "0123456789") == "":
		return "", fmt.Errorf("want HOST or HOST:PORT, got %q: a port alone is written :%s", s, s)
	case err != nil && IsHost(s):
		return net.JoinHostPort(BareHost(s), strconv.Itoa(port)), nil
	case err != nil || host != "" && !IsHost(host) || host == "" && !listener:
		return "", fmt.Errorf("want HOST or HOST:PORT, got %q", s)
	}
	if strings.Trim(given, portLetters) != "" {
		return "", fmt.Errorf("want HOST or HOST:PORT, got %q", s)
	}
	// A name in /etc/services is valid too.
	n, err := net.DefaultResolver.LookupPort(context.Background(), "tcp", given)
	if err != nil || n == 0 && !listener {
		return "", fmt.Errorf("port %q of %q is not one of 1 to 65535", given, s)
	}
	return s, nil
}
