// Package krb5 is the Kerberos 5 mechanism of the GSS-API (RFC 4121) for RPCSEC_GSS: what clients and servers of
// NFS call sec=krb5, krb5i and krb5p. It has no C code. The KDC that it is tested with is MIT's.
//
//	initiator, err := krb5.NewInitiator(krb5.InitiatorConfig{Service: "nfs@server.example.com"}) // with the tickets of kinit
//	client := rpcsec.NewClient(conn, rpcsec.ClientConfig{Initiator: initiator, Service: rpc.ServicePrivacy})
//
//	acceptor, err := krb5.NewAcceptor(krb5.AcceptorConfig{Keytab: "/etc/krb5.keytab", Service: "nfs"})
//	server := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: acceptor, Required: true})
//
// Tickets and sessions have keys of AES with SHA-1 (RFC 3962) or SHA-2 (RFC 8009). DES, triple DES and RC4 are
// refused. Both ends prove their names, and the acceptor's key protects the messages.
//
// An [Acceptor] answers with the codes of RFC 4120 section 7.5.9 as minor status: an [Error] at either end. It
// remembers authenticators for as long as their time is accepted, which is not kept when the process ends.
package krb5
