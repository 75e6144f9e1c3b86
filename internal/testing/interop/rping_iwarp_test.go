//go:build linux

package interop

import (
	"fmt"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// iwarpProvider is the software adapter, with rping on siw.
func iwarpProvider(name string, cfg iwarp.Config) provider {
	return provider{
		name: name,
		peer: "siw",
		new: func(*testing.T) (fabric.Provider, func() error) {
			p := iwarp.New(cfg)
			return p, func() error {
				if live := p.OpenObjects(); live != (iwarp.OpenObjects{}) {
					return fmt.Errorf("%+v", live)
				}
				return nil
			}
		},
	}
}

// As a responder the adapter uses CRCs only if requested, which siw does not, or with
// RequireCRC. Segments of siw are as long as those of TCP, ours are 64 KiB between addresses
// of one host unless configured otherwise.
var iwarpServers = []provider{
	iwarpProvider("default", iwarp.Config{}),
	iwarpProvider("CRC", iwarp.Config{RequireCRC: true}),
	iwarpProvider("short", iwarp.Config{MaxFPDU: 1448}),
}

// As an initiator it decides about CRCs.
var iwarpClients = []provider{
	iwarpProvider("default", iwarp.Config{}),
	iwarpProvider("CRC", iwarp.Config{CRC: true}),
	iwarpProvider("short", iwarp.Config{MaxFPDU: 1448}),
	iwarpProvider("shortCRC", iwarp.Config{MaxFPDU: 1448, CRC: true}),
	iwarpProvider("peerToPeer", iwarp.Config{PeerToPeer: true}),
}

func TestRDMARpingServerIwarp(t *testing.T)  { each(t, iwarpServers, testServer) }
func TestRDMARpingClientIwarp(t *testing.T)  { each(t, iwarpClients, testClient) }
func TestRDMARpingSeveralIwarp(t *testing.T) { each(t, iwarpServers[:1], testSeveral) }
func TestRDMARpingInARowIwarp(t *testing.T)  { each(t, iwarpClients[:1], testInARow) }

func TestRDMARpingKilledClientIwarp(t *testing.T)  { each(t, iwarpServers, testKilledClient) }
func TestRDMARpingKilledServerIwarp(t *testing.T)  { each(t, iwarpClients, testKilledServer) }
func TestRDMARpingStoppedServerIwarp(t *testing.T) { each(t, iwarpServers, testStoppedServer) }
func TestRDMARpingStoppedClientIwarp(t *testing.T) { each(t, iwarpClients, testStoppedClient) }
func TestRDMARpingRejectedIwarp(t *testing.T)      { each(t, iwarpServers[:1], testRejected) }
