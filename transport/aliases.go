package transport

import "github.com/rpcrdma/rpcrdma/rpc"

type (
	Procedure      = rpc.Procedure
	Range          = rpc.Range
	Binding        = rpc.Binding
	ReplyBounds    = rpc.ReplyBounds
	Idempotence    = rpc.Idempotence
	Walk           = rpc.Walk
	Call           = rpc.Call
	ReadItem       = rpc.ReadItem
	WriteItem      = rpc.WriteItem
	Caller         = rpc.Caller
	CallerFunc     = rpc.CallerFunc
	ClosedError    = rpc.ClosedError
	StallError     = rpc.StallError
	LostError      = rpc.LostError
	NotReadyError  = rpc.NotReadyError
	RDMAError      = rpc.RDMAError
	BadReplyError  = rpc.BadReplyError
	ItemError      = rpc.ItemError
	SizeError      = rpc.SizeError
	ReplySizeError = rpc.ReplySizeError
	PeerError      = rpc.PeerError
	VersionError   = rpc.VersionError
	Pool[T any]    = rpc.Pool[T]
	Calls          = rpc.Calls
	Handler        = rpc.Handler
	HandlerFunc    = rpc.HandlerFunc
	Program        = rpc.Program
	Request        = rpc.Request
	Middleware     = rpc.Middleware
	Observer       = rpc.Observer
	NoObserver     = rpc.NoObserver
	ConnEvent      = rpc.ConnEvent
	CallEvent      = rpc.CallEvent
	Transfer       = rpc.Transfer
	Ways           = rpc.Ways
	Notice         = rpc.Notice
	NoticeKind     = rpc.NoticeKind
	Procedures     = rpc.Procedures
	Response       = rpc.Response
	ResultDecoder  = rpc.ResultDecoder
	ConnInfo       = rpc.ConnInfo
	Stats          = rpc.Stats
	Counter        = rpc.Counter
	CounterKind    = rpc.CounterKind
	ConnStats      = rpc.ConnStats
)

const (
	ByMessage         = rpc.ByMessage
	ByReadChunk       = rpc.ByReadChunk
	ByLongCall        = rpc.ByLongCall
	ByWriteChunk      = rpc.ByWriteChunk
	ByReplyChunk      = rpc.ByReplyChunk
	NoticeRefused     = rpc.NoticeRefused
	NoticeRejected    = rpc.NoticeRejected
	NoticeCreditStall = rpc.NoticeCreditStall
	NoticeMemoryStall = rpc.NoticeMemoryStall
	NoticeRegistered  = rpc.NoticeRegistered
	CountsTraffic     = rpc.CountsTraffic
	CountsEvents      = rpc.CountsEvents
	CountsWays        = rpc.CountsWays
	CountsConns       = rpc.CountsConns
)

var NewWalk = rpc.NewWalk

func Counted[T ~int32 | ~uint32 | ~int64 | ~uint64](count T) int { return rpc.Counted(count) }

var Versions = rpc.Versions
var Every = rpc.Every
var Chain = rpc.Chain
var ConnFromContext = rpc.ConnFromContext
var IsInline = rpc.IsInline
var Observers = rpc.Observers
