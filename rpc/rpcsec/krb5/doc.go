// Package krb5 implements the Kerberos 5 mechanism of the GSS-API (RFC 4121) for RPCSEC_GSS, which NFS calls sec=krb5,
// krb5i and krb5p. It is pure Go, and is tested with MIT's KDC.
//
//	initiator, err := krb5.NewInitiator(krb5.InitiatorConfig{Service: "nfs@server.example.com"}) // with the tickets of kinit
//	client := rpcsec.NewClient(conn, rpcsec.ClientConfig{Initiator: initiator, Service: rpc.ServicePrivacy})
//
//	acceptor, err := krb5.NewAcceptor(krb5.AcceptorConfig{Keytab: "/etc/krb5.keytab", Service: "nfs"})
//	server := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: acceptor, Required: true})
//
// Tickets and sessions use keys for AES with SHA-1 (RFC 3962) or SHA-2 (RFC 8009). DES, triple DES and RC4 are refused.
// Authentication is mutual, and a subkey of the acceptor protects the messages.
//
// An [Acceptor] replies with the codes of RFC 4120 section 7.5.9 as minor status, which becomes an [Error] at either
// end. It remembers authenticators for as long as their time is accepted, but not across restarts of the process.
package krb5
