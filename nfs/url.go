package nfs

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// A URL names an object on a server: nfs://HOST[:PORT]/EXPORT/PATH.
type URL struct {
	Host string // name or address, without brackets
	Port int    // 1 to 65535
	Path string // rooted, cleaned as path.Clean does, not escaped
}

// A URLError is an invalid URL.
type URLError struct {
	URL string
	Err error
}

func (e *URLError) Error() string { return fmt.Sprintf("nfs: URL %q: %v", e.URL, e.Err) }

// Unwrap returns the reason.
func (e *URLError) Unwrap() error { return e.Err }

// ParseURL reads nfs://HOST[:PORT]/EXPORT/PATH. The default port is 20049 (RFC 5666 section 12). An
// IPv6 address must be in brackets; reserved characters in the path, such as '?', '#' and '%', must
// be escaped as %XX. Every error is a *URLError.
func ParseURL(s string) (*URL, error) {
	u, err := parseURL(s)
	if err != nil {
		return nil, &URLError{URL: s, Err: err}
	}
	return u, nil
}

func parseURL(s string) (*URL, error) {
	p, err := url.Parse(s)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the URL, which URLError includes
		}
		if manyColons(s) { // which some versions of Go take for a port, and others for a host
			err = errBrackets
		}
		return nil, err
	}
	switch {
	case !strings.Contains(s, "://"):
		return nil, errors.New("want nfs://HOST[:PORT]/EXPORT/PATH")
	case p.Scheme != "nfs":
		return nil, fmt.Errorf("scheme is %q, want nfs", p.Scheme)
	case p.User != nil:
		return nil, errors.New("NFS URLs have no user")
	case p.RawQuery != "" || p.ForceQuery:
		return nil, errors.New("a '?' in the path must be written %3F")
	case p.Fragment != "" || strings.HasSuffix(s, "#"):
		return nil, errors.New("a '#' in the path must be written %23")
	case p.Hostname() == "":
		return nil, errors.New("no host")
	case !validHost(p.Hostname()):
		return nil, fmt.Errorf("host %q is neither a name nor an address", p.Hostname())
	case strings.ContainsRune(p.Path, 0):
		return nil, errors.New("NUL in the path")
	}
	u := &URL{Host: p.Hostname(), Port: Port, Path: cleanPath(p.Path)}
	// The last group of an IPv6 address without brackets would be mistaken for the port.
	if strings.Contains(u.Host, ":") && !strings.HasPrefix(p.Host, "[") {
		return nil, errBrackets
	}
	if strings.HasSuffix(p.Host, ":") {
		return nil, errors.New("no port after ':'")
	}
	if port := p.Port(); port != "" {
		if u.Port, err = strconv.Atoi(port); err != nil || u.Port < 1 || u.Port > 65535 {
			return nil, fmt.Errorf("port %q is not one of 1 to 65535", port)
		}
	}
	return u, nil
}

// errBrackets is immutable.
var errBrackets = errors.New("an IPv6 address must be in brackets")

// manyColons reports whether the host and port of a URL have more than one colon and no brackets.
func manyColons(s string) bool {
	_, rest, _ := strings.Cut(s, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return strings.Count(rest, ":") > 1 && !strings.ContainsAny(rest, "[]@")
}

// validHost reports whether host has only characters that occur in names and addresses, including zones.
func validHost(host string) bool {
	host, zone, ok := strings.Cut(host, "%")
	if ok && (zone == "" || !strings.Contains(host, ":")) {
		return false
	}
	plain := func(r rune) bool {
		return '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || strings.ContainsRune("-._~:", r)
	}
	for _, r := range zone {
		if !plain(r) {
			return false
		}
	}
	for _, r := range host {
		if !plain(r) && r < 0x80 { // others may be letters of other scripts
			return false
		}
	}
	return true
}

// Addr returns host and port for Dial.
func (u *URL) Addr() string { return net.JoinHostPort(u.Host, strconv.Itoa(u.Port)) }

// String returns the URL with its port, escaped where necessary.
func (u *URL) String() string {
	return (&url.URL{Scheme: "nfs", Host: u.Addr(), Path: u.Path}).String()
}

func cleanPath(p string) string { return path.Clean("/" + p) }

// validEntry reports whether name is a valid directory entry other than "." and "..".
func validEntry(name string) bool {
	return name != "" && !strings.ContainsAny(name, "/\x00")
}

// ValidName reports whether name, which may come from a hostile server, is safe to join to a
// local path: it is a single path element, not empty, "." or "..", and has no special meaning
// on the local system.
func ValidName(name string) bool {
	return validEntry(name) && name != "." && name != ".." &&
		!strings.ContainsRune(name, filepath.Separator) && filepath.IsLocal(name)
}
