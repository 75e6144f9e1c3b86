package dump

import (
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A Message describes one message as far as it could be decoded. Pointers and slices are nil for parts that the message
// lacks or that come after the damage.
type Message struct {
	Number  int     `json:"message"`       // the decoder's first message is 1
	Size    int     `json:"bytes"`         // of the whole message
	XID     *Hex32  `json:"xid,omitempty"` // nil: incomplete header
	Version uint32  `json:"version,omitempty"`
	Credits uint32  `json:"credits"`
	Type    string  `json:"type,omitempty"`   // such as RDMA_MSG
	Align   *uint32 `json:"align,omitempty"`  // RDMA_MSGP
	Thresh  *uint32 `json:"thresh,omitempty"` // RDMA_MSGP
	Lists   *Lists  `json:"lists,omitempty"`
	Error   *Error  `json:"error,omitempty"`
	Option  *Option `json:"option,omitempty"`

	PrivateData *PrivateData `json:"private_data,omitempty"` // then there is no header

	RPCOffset int    `json:"rpc_offset,omitempty"` // where the RPC message begins, in bytes
	Call      *Call  `json:"call,omitempty"`
	Reply     *Reply `json:"reply,omitempty"`

	Problem string `json:"problem,omitempty"` // what is wrong with the message, and where
}

// Lists are the chunk lists of a header: read chunks in Reads, write chunks in Writes. A list
// after the damage is nil; an empty one is not.
type Lists struct {
	Reads  []Segment   `json:"reads"`
	Writes [][]Segment `json:"writes,omitzero"`
	Reply  *[]Segment  `json:"reply_chunk,omitzero"` // points to nil if the message has none
}

// A Segment is a segment of a peer's memory.
type Segment struct {
	Position *uint32 `json:"position,omitempty"` // in the read list only
	Handle   Hex32   `json:"handle"`
	Length   uint32  `json:"length"` // in bytes
	Offset   Hex64   `json:"offset"`
}

// An Error is the body of RDMA_ERROR.
type Error struct {
	Code string  `json:"code"`
	Low  *uint32 `json:"low,omitempty"` // ERR_VERS: versions that the peer supports
	High *uint32 `json:"high,omitempty"`
}

// An Option is the body of RDMA_OPTIONAL, which only version 2 has. Operation is its number, and Name its name if
// known.
type Option struct {
	Operation  Hex32       `json:"operation"`
	Name       string      `json:"operation_name,omitempty"`
	Data       *string     `json:"data,omitempty"` // hexadecimal; nil if truncated
	Properties *Properties `json:"properties,omitempty"`
}

// Properties is the data of RPCRDMA2_OPT_PROPERTIES.
type Properties struct {
	Direction string  `json:"direction"`           // offer, accept or reject
	Send      *uint32 `json:"send_size,omitempty"` // in bytes
	Recv      *uint32 `json:"recv_size,omitempty"` // in bytes
	Inval     *bool   `json:"remote_invalidation,omitempty"`
	Reason    string  `json:"reason,omitempty"` // reason of a rejection

	dir rpcrdma.PropDir
}

// PrivateData is the connection's private data, RFC 8797 section 4.
type PrivateData struct {
	Version uint8 `json:"version"`
	Send    int   `json:"send_size"` // in bytes
	Recv    int   `json:"recv_size"` // in bytes
	Inval   bool  `json:"remote_invalidation"`

	// Setup is the setup message after it, or nil. docs/protocol.md, At setup.
	Setup *Setup `json:"setup,omitempty"`
}

// A Setup is the private data that peers of version 2 exchange.
type Setup struct {
	Credit uint32 `json:"credit"` // calls requested or granted
	Properties
}

// A Call is the header of an RPC call, RFC 5531 section 9: numbers, and names if known.
type Call struct {
	XID      Hex32  `json:"xid"`
	RPCVers  uint32 `json:"rpc_version"`
	Prog     uint32 `json:"program"`
	ProgName string `json:"program_name,omitempty"`
	Vers     uint32 `json:"program_version"`
	Proc     uint32 `json:"procedure"`
	ProcName string `json:"procedure_name,omitempty"`
	Cred     *Auth  `json:"credential,omitzero"`
	Verf     *Auth  `json:"verifier,omitzero"`
	Args     *int   `json:"argument_bytes,omitzero"` // only inline; chunks are not counted

	number int // number of the message that contains it
}

// A Reply is the header of an RPC reply, RFC 5531 section 9. Statuses use its spelling.
type Reply struct {
	XID    Hex32   `json:"xid"`
	Stat   string  `json:"status,omitempty"`
	Accept string  `json:"accept_status,omitempty"`
	Reject string  `json:"reject_status,omitempty"`
	Auth   string  `json:"auth_status,omitempty"`
	Low    *uint32 `json:"low,omitempty"` // versions that the server supports
	High   *uint32 `json:"high,omitempty"`
	Verf   *Auth   `json:"verifier,omitempty"`
	Result *int    `json:"result_bytes,omitzero"` // only inline; chunks are not counted
	To     *Call   `json:"in_reply_to,omitempty"` // nil unless the decoder has seen the call
}

// An Auth is a credential or a verifier. The fields after Bytes are set for AUTH_SYS.
type Auth struct {
	Flavor  string   `json:"flavor"` // such as AUTH_SYS, or a number
	Bytes   int      `json:"bytes"`  // of the body
	Machine string   `json:"machine,omitempty"`
	UID     *uint32  `json:"uid,omitempty"`
	GID     *uint32  `json:"gid,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
}

// Opaque numbers print in hexadecimal. They are strings in JSON, because many readers of JSON keep only 53 bits of a
// number.
type (
	Hex32 uint32
	Hex64 uint64
)

func (v Hex32) String() string { return fmt.Sprintf("%#08x", uint32(v)) }
func (v Hex64) String() string { return fmt.Sprintf("%#016x", uint64(v)) }

// MarshalText returns the same text as String.
func (v Hex32) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// MarshalText returns the same text as String.
func (v Hex64) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
