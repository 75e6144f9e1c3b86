package connect

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
)

// LocalAddresses completes a local address, with a port.
func LocalAddresses(port int) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		list := []string{fmt.Sprintf(":%d", port)}
		for _, p := range localPrefixes() {
			list = append(list, netip.AddrPortFrom(p.Addr(), uint16(port)).String())
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// LocalNetworks completes a network to which this machine belongs.
func LocalNetworks(*cobra.Command, []string, string) (list []string, _ cobra.ShellCompDirective) {
	for _, p := range localPrefixes() {
		list = append(list, p.Masked().String())
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// localPrefixes returns the local addresses that do not need a zone.
func localPrefixes() (list []netip.Prefix) {
	addrs, _ := net.InterfaceAddrs() // without addresses there is nothing to complete
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			list = append(list, p)
		}
	}
	return list
}

// CompleteHost completes the name of a server.
func CompleteHost(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return KnownHosts(os.DirFS("/")), cobra.ShellCompDirectiveNoFileComp
}

// KnownHosts returns the hosts from which NFS is mounted, and those in the hosts file.
func KnownHosts(root fs.FS) []string {
	var list []string
	add := func(host string) {
		if len(list) < cli.CompletionNames && cli.EscapeAll(host) == strings.ReplaceAll(host, ":", "%3A") && !slices.Contains(list, host) {
			list = append(list, host)
		}
	}
	eachLine(root, "proc/self/mounts", func(fields []string) {
		if len(fields) > 2 && strings.HasPrefix(fields[2], "nfs") {
			if i := strings.LastIndex(fields[0], ":/"); i > 0 {
				add(cli.BareHost(fields[0][:i]))
			}
		}
	})
	eachLine(root, "etc/hosts", func(fields []string) {
		for _, name := range fields[1:] {
			// Debian lists names of groups there.
			if !strings.HasPrefix(name, "ip6-") {
				add(name)
			}
		}
	})
	return list
}

// eachLine calls f with the fields of each line that is not empty or a comment. It reads at most cli.CompletionFile
// bytes.
func eachLine(root fs.FS, name string, f func(fields []string)) {
	file, err := root.Open(name)
	if err != nil {
		return
	}
	defer file.Close()
	for lines := bufio.NewScanner(io.LimitReader(file, cli.CompletionFile)); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if fields := strings.Fields(text); len(fields) > 0 {
			f(fields)
		}
	}
}
