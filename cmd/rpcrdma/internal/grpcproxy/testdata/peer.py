"""One end of gRPC in Python, for languages_test.go: peer.py server, or peer.py client HOST:PORT.

The service is test.Peer. Its messages are google.protobuf.BytesValue, which are written by hand so that
nothing has to be generated.
"""
import sys
import threading
from concurrent import futures

import grpc

SENT = (("x-text", "one"), ("x-text", "two"), ("x-raw-bin", b"\x00\xff\n"))
DETAIL = "not today: \u00fc, \n%"


def message(data):
    """A BytesValue: field 1, its length as a varint, the bytes. Without bytes it is empty."""
    if not data:
        return b""
    out, n = bytearray(b"\x0a"), len(data)
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out) + data


def same(sent, got, where):
    got = [(k, v) for k, v in got or () if k in ("x-text", "x-raw-bin")]
    if sorted(got, key=str) != sorted(sent, key=str):
        sys.exit("%s: %r, want %r" % (where, got, sent))


def answers(context):
    return tuple((k, v) for k, v in context.invocation_metadata() if k in ("x-text", "x-raw-bin"))


def echo(requests, context):
    context.send_initial_metadata(answers(context))
    context.set_trailing_metadata(answers(context))
    for m in requests:
        yield m


def fail(requests, context):
    context.set_trailing_metadata(answers(context))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, DETAIL)
    yield b""


def wait(requests, context):
    ended = threading.Event()
    context.add_callback(ended.set)
    context.send_initial_metadata(answers(context))
    ended.wait()
    print("canceled", flush=True)
    yield b""


def server():
    s = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    s.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Peer", {
        name: grpc.stream_stream_rpc_method_handler(f) for name, f in (("Echo", echo), ("Fail", fail), ("Wait", wait))
    }),))
    print("127.0.0.1:%d" % s.add_insecure_port("127.0.0.1:0"), flush=True)
    s.start()
    sys.stdin.read()
    s.stop(None)


def client(addr):
    with grpc.insecure_channel(addr) as channel:
        def failed(call, want):
            try:
                call()
            except grpc.RpcError as e:
                if e.code() != want:
                    sys.exit("%s, want %s" % (e, want))
                return e
            sys.exit("no error, want %s" % want)

        unary = channel.unary_unary("/test.Peer/Echo")
        for compression in (None, grpc.Compression.Gzip):
            for n in (0, 100, 1 << 20):
                m = message(b"x" * n)
                got, call = unary.with_call(m, metadata=SENT, timeout=60, compression=compression)
                if got != m:
                    sys.exit("%d bytes come back, want %d" % (len(got), len(m)))
                same(SENT, call.initial_metadata(), "header")
                same(SENT, call.trailing_metadata(), "trailer")

        chat = channel.stream_stream("/test.Peer/Echo")(iter([message(b"%d" % i) for i in range(100)]), timeout=60)
        if list(chat) != [message(b"%d" % i) for i in range(100)]:
            sys.exit("the stream returns other messages")

        e = failed(lambda: channel.unary_unary("/test.Peer/Fail")(message(b""), metadata=SENT, timeout=60),
                   grpc.StatusCode.FAILED_PRECONDITION)
        same(SENT, e.trailing_metadata(), "trailer of an error")
        if e.details() != DETAIL:
            sys.exit("the text is %r" % e.details())
        if not any(k == "grpc-status-details-bin" and b"google.protobuf.Duration" in v for k, v in e.trailing_metadata()):
            sys.exit("no details: %r" % (e.trailing_metadata(),))

        failed(lambda: channel.unary_unary("/test.Peer/Wait")(message(b""), timeout=0.3), grpc.StatusCode.DEADLINE_EXCEEDED)
        waiting = channel.stream_stream("/test.Peer/Wait")(iter([]), timeout=60)
        waiting.initial_metadata()
        waiting.cancel()
        failed(lambda: channel.unary_unary("/test.None/x")(b""), grpc.StatusCode.UNIMPLEMENTED)
    print("ok", flush=True)


if sys.argv[1] == "server":
    server()
else:
    client(sys.argv[2])
