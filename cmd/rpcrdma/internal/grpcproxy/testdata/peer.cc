// One end of gRPC in C++, for languages_test.go: as peer.py. It uses generic stubs and services, so that
// nothing has to be generated.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

using grpc::ByteBuffer;
using grpc::Status;
using grpc::StatusCode;

namespace {

const std::string kRaw("\x00\xff\n", 3);
const char kDetail[] = "not today: \xc3\xbc, \n%";

[[noreturn]] void die(const std::string& text) {
  std::cerr << text << std::endl;
  std::exit(1);
}

ByteBuffer buffer(const std::string& s) {
  grpc::Slice slice(s);
  return ByteBuffer(&slice, 1);
}

std::string text(const ByteBuffer& b) {
  std::vector<grpc::Slice> slices;
  b.Dump(&slices);
  std::string s;
  for (const auto& slice : slices) s.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return s;
}

// A BytesValue: field 1, its length as a varint, the bytes. Without bytes it is empty.
std::string message(const std::string& data) {
  if (data.empty()) return data;
  std::string s = "\x0a";
  size_t n = data.size();
  for (; n > 127; n >>= 7) s.push_back(char(n & 127 | 128));
  s.push_back(char(n));
  return s + data;
}

template <class Map>
void same(const Map& got, const std::string& where) {
  auto raw = got.find("x-raw-bin");
  if (raw == got.end() || std::string(raw->second.data(), raw->second.size()) != kRaw || got.count("x-text") != 2)
    die(where + ": other metadata");
}

// ---- server

class Reactor : public grpc::ServerGenericBidiReactor {
 public:
  explicit Reactor(grpc::GenericCallbackServerContext* ctx) : ctx_(ctx), method_(ctx->method()) {
    for (const auto& m : ctx->client_metadata()) {
      std::string k(m.first.data(), m.first.size()), v(m.second.data(), m.second.size());
      if (k != "x-text" && k != "x-raw-bin") continue;
      ctx->AddTrailingMetadata(k, v);
      if (method_ != "/test.Peer/Fail") ctx->AddInitialMetadata(k, v);
    }
    if (method_ == "/test.Peer/Fail") {
      Finish(Status(StatusCode::FAILED_PRECONDITION, kDetail));
    } else if (method_ == "/test.Peer/Echo") {
      StartSendInitialMetadata();
    } else if (method_ == "/test.Peer/Wait") {
      StartSendInitialMetadata();
    } else {
      Finish(Status(StatusCode::UNIMPLEMENTED, "unknown"));
    }
  }
  void OnSendInitialMetadataDone(bool) override {
    if (method_ == "/test.Peer/Echo") StartRead(&m_);
  }
  void OnReadDone(bool ok) override {
    if (ok)
      StartWrite(&m_);
    else
      Finish(Status::OK);
  }
  void OnWriteDone(bool ok) override {
    if (ok)
      StartRead(&m_);
    else
      Finish(Status::CANCELLED);
  }
  void OnCancel() override {
    if (method_ != "/test.Peer/Wait") return;
    std::cout << "canceled" << std::endl;
    Finish(Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  grpc::GenericCallbackServerContext* ctx_;
  std::string method_;
  ByteBuffer m_;
};

class Service : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* ctx) override { return new Reactor(ctx); }
};

void server() {
  Service service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  auto s = builder.BuildAndStart();
  std::cout << "127.0.0.1:" << port << std::endl;
  while (std::cin.get() != EOF) {
  }
  s->Shutdown(std::chrono::system_clock::now());
}

// ---- client

void prepare(grpc::ClientContext* ctx, std::chrono::milliseconds timeout) {
  ctx->set_deadline(std::chrono::system_clock::now() + timeout);
  ctx->AddMetadata("x-text", "one");
  ctx->AddMetadata("x-text", "two");
  ctx->AddMetadata("x-raw-bin", kRaw);
}

Status unary(grpc::GenericStub* stub, grpc::ClientContext* ctx, const std::string& method, const std::string& in, std::string* out) {
  ByteBuffer request = buffer(in), reply;
  std::promise<Status> done;
  stub->UnaryCall(ctx, method, grpc::StubOptions(), &request, &reply, [&](Status s) { done.set_value(s); });
  Status s = done.get_future().get();
  if (s.ok()) *out = text(reply);
  return s;
}

void want(const Status& s, StatusCode code, const std::string& where) {
  if (s.error_code() != code) die(where + ": status " + std::to_string(s.error_code()) + ": " + s.error_message());
}

class Chat : public grpc::ClientBidiReactor<ByteBuffer, ByteBuffer> {
 public:
  Chat(grpc::GenericStub* stub, grpc::ClientContext* ctx, int n) : n_(n) {
    stub->PrepareBidiStreamingCall(ctx, "/test.Peer/Echo", grpc::StubOptions(), this);
    next();
    StartRead(&in_);
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    if (ok) next();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (text(in_) != message(std::to_string(got_))) die("the stream returns another message");
    got_++;
    StartRead(&in_);
  }
  void OnDone(const Status& s) override { done_.set_value(s); }
  void wait() {
    want(done_.get_future().get(), StatusCode::OK, "stream");
    if (got_ != n_) die("the stream returns " + std::to_string(got_) + " messages");
  }

 private:
  void next() {
    if (sent_ == n_) {
      StartWritesDone();
      return;
    }
    out_ = buffer(message(std::to_string(sent_++)));
    StartWrite(&out_);
  }
  int n_, sent_ = 0, got_ = 0;
  ByteBuffer in_, out_;
  std::promise<Status> done_;
};

void client(const std::string& addr) {
  grpc::GenericStub stub(grpc::CreateChannel(addr, grpc::InsecureChannelCredentials()));
  const std::chrono::milliseconds minute(60000);
  std::string out;
  for (bool gzip : {false, true}) {
    for (size_t n : {0, 100, 1 << 20}) {
      grpc::ClientContext ctx;
      prepare(&ctx, minute);
      if (gzip) ctx.set_compression_algorithm(GRPC_COMPRESS_GZIP);
      std::string in = message(std::string(n, 'x'));
      want(unary(&stub, &ctx, "/test.Peer/Echo", in, &out), StatusCode::OK, "echo");
      if (out != in) die("other bytes come back");
      same(ctx.GetServerInitialMetadata(), "header");
      same(ctx.GetServerTrailingMetadata(), "trailer");
    }
  }
  {
    grpc::ClientContext ctx;
    prepare(&ctx, minute);
    Chat chat(&stub, &ctx, 100);
    chat.wait();
  }
  {
    grpc::ClientContext ctx;
    prepare(&ctx, minute);
    Status s = unary(&stub, &ctx, "/test.Peer/Fail", message(""), &out);
    want(s, StatusCode::FAILED_PRECONDITION, "failure");
    same(ctx.GetServerTrailingMetadata(), "trailer of an error");
    if (s.error_message() != kDetail) die("the text is " + s.error_message());
    if (s.error_details().find("google.protobuf.Duration") == std::string::npos) die("no details");
  }
  {
    grpc::ClientContext ctx;
    prepare(&ctx, std::chrono::milliseconds(300));
    want(unary(&stub, &ctx, "/test.Peer/Wait", message(""), &out), StatusCode::DEADLINE_EXCEEDED, "deadline");
  }
  {
    grpc::ClientContext ctx;
    prepare(&ctx, minute);
    std::thread cancel([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ctx.TryCancel();
    });
    want(unary(&stub, &ctx, "/test.Peer/Wait", message(""), &out), StatusCode::CANCELLED, "cancellation");
    cancel.join();
  }
  std::cout << "ok" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "server")
    server();
  else if (argc == 3)
    client(argv[2]);
  else
    return 2;
}
