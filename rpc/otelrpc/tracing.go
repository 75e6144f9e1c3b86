package otelrpc

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
)

// A Carrier carries the fields of a propagator, such as the "traceparent" of W3C Trace Context, from caller to handler,
// in a place that both have agreed on, since ONC RPC defines none. A program with a place in its arguments writes its
// own Carrier; [Verifier] is one that needs no such place.
type Carrier interface {
	// Inject puts fields into a call that is about to be made. It may replace Cred, Verf and Args, but must not write
	// to the memory they refer to: they are restored when the call returns.
	Inject(call *rpc.Call, fields map[string]string)

	// Extract returns the fields of a request, nil if it has none. The request comes from a peer that may be hostile.
	// The map must not refer to the request's memory.
	Extract(req *rpc.Request) map[string]string
}

// Verifier is a Carrier that puts the fields into the RPC verifier of calls, with this flavor. Both ends must know the
// flavor: servers that only know the flavors of RFC 5531, such as Linux's, reject such calls. It leaves calls alone
// that already have a verifier, such as those of RPCSEC_GSS. Choose a flavor that nothing else in the network uses,
// such as one above 0x20000000. The fields prove nothing: any caller can continue any trace.
type Verifier oncrpc.Flavor

// maxFields is the maximum number of fields in a verifier.
const maxFields = 8

// Inject implements Carrier. It leaves out fields for which the verifier has no room.
func (v Verifier) Inject(call *rpc.Call, fields map[string]string) {
	if call.Verf.Flavor != oncrpc.FlavorNone || len(call.Verf.Body) > 0 || len(fields) == 0 {
		return
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { // short ones first: traceparent before baggage
		return len(fields[a]) - len(fields[b])
	})
	body := xdr.AppendUint32(nil, 0)
	n := uint32(0)
	for _, name := range names {
		longer := xdr.AppendString(xdr.AppendString(body, name), fields[name])
		if len(longer) > oncrpc.MaxAuthBody || n == maxFields {
			break
		}
		body = longer
		n++
	}
	if n == 0 {
		return
	}
	xdr.AppendUint32(body[:0], n)
	call.Verf = oncrpc.Auth{Flavor: oncrpc.Flavor(v), Body: body}
}

// Extract implements Carrier.
func (v Verifier) Extract(req *rpc.Request) map[string]string {
	if req.Verf.Flavor != oncrpc.Flavor(v) {
		return nil
	}
	d := xdr.NewDecoder(req.Verf.Body)
	n := d.Count(maxFields, 8)
	fields := make(map[string]string, n)
	for range n {
		name := d.String(oncrpc.MaxAuthBody)
		fields[name] = d.String(oncrpc.MaxAuthBody)
	}
	if d.End() != nil {
		return nil
	}
	return fields
}

// Tracing makes spans of calls.
type Tracing struct {
	cfg    Config
	tracer trace.Tracer
}

// NewTracing returns a new Tracing.
func NewTracing(cfg Config) *Tracing {
	cfg.settle()
	return &Tracing{cfg: cfg, tracer: cfg.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
}

// begin begins a span for a procedure.
func (t *Tracing) begin(ctx context.Context, kind trace.SpanKind, p rpc.Procedure) (context.Context, trace.Span) {
	e := t.cfg.Table.At(t.cfg.Table.Index(p.Prog, p.Vers, p.Proc))
	ctx, span := t.tracer.Start(ctx, spanName(e), trace.WithSpanKind(kind))
	t.name(span, p, e)
	return ctx, span
}

func spanName(e names.Entry) string {
	if name := method(e); name != other {
		return name
	}
	return string(system)
}

// name gives a span the attributes of p, which is e.
func (t *Tracing) name(span trace.Span, p rpc.Procedure, e names.Entry) {
	if span.IsRecording() {
		// A procedure without a name gets its number: a span may have values that a metric must not have.
		list := attributes(e)
		if e.Program == names.Other {
			list = append(list, semconv.OncRPCVersion(int(p.Vers)))
		}
		if e.Procedure == names.Other {
			list = append(list, semconv.OncRPCProcedureNumber(int(p.Proc)))
		}
		span.SetAttributes(append(list, attribute.Int64("onc_rpc.program.number", int64(p.Prog)))...)
	}
}

// end ends a span. It uses e for the words that describe the outcome: Status and Err must be set.
func end(span trace.Span, e *rpc.CallEvent) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	word := e.Outcome()
	span.SetAttributes(outcome(word, replied(e.Err))...)
	if word != "success" {
		text := word
		if e.Err != nil {
			text = e.Err.Error()
		}
		span.SetStatus(codes.Error, text)
	}
}

// Caller returns a Caller that makes calls with next, each in a span that is a child of the span of its context.
// Config.Carrier carries the span's context.
func (t *Tracing) Caller(next rpc.Caller) rpc.Caller { return caller{t, next} }

type caller struct {
	t    *Tracing
	next rpc.Caller
}

// Call implements rpc.Caller.
func (c caller) Call(ctx context.Context, call *rpc.Call) error {
	p := call.ObservedAs()
	ctx, span := c.t.begin(ctx, trace.SpanKindClient, p)
	if carrier := c.t.cfg.Carrier; carrier != nil {
		fields := make(propagation.MapCarrier)
		c.t.cfg.Propagator.Inject(ctx, fields)
		if len(fields) > 0 {
			cred, verf, args := call.Cred, call.Verf, call.Args
			carrier.Inject(call, fields)
			defer func() { call.Cred, call.Verf, call.Args = cred, verf, args }()
		}
	}
	err := c.next.Call(ctx, call)
	end(span, &rpc.CallEvent{Procedure: p, Err: err})
	return err
}

// Handler returns a Handler that executes calls with next, each in a span. The span is a child of the caller's if
// Config.Carrier finds its context. The spans of calls that next makes with its context are children of the new span.
// NULL has no span, because the transport answers it.
func (t *Tracing) Handler(next rpc.Handler) rpc.Handler {
	return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
		if carrier := t.cfg.Carrier; carrier != nil {
			if fields := carrier.Extract(req); len(fields) > 0 {
				ctx = t.cfg.Propagator.Extract(ctx, propagation.MapCarrier(fields))
			}
		}
		ctx, span := t.begin(ctx, trace.SpanKindServer, req.Procedure)
		e := &rpc.CallEvent{Procedure: req.Procedure, Status: oncrpc.ReplyHeader{AcceptStat: oncrpc.SystemErr}} // if next panics
		defer func() { end(span, e) }()
		next.ServeRPC(ctx, req, res)
		if p := req.Observed; p != e.Procedure {
			as := t.cfg.Table.At(t.cfg.Table.Index(p.Prog, p.Vers, p.Proc))
			span.SetName(spanName(as))
			t.name(span, p, as)
		}
		e.Status = res.Status()
	})
}
