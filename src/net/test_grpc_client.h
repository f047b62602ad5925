// A client of gRPC for tests: calls of one connection, all under way at once. Bytes leave the
// socket in pieces of the test's choice.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/http2_library.h"
#include "net/test_socket.h"

namespace espalier::net {

// A message as gRPC frames it.
inline std::string grpc_frame(std::string_view message) {
  std::string out(5, '\0');
  for (int i = 0; i < 4; ++i) out[4 - i] = static_cast<char>(message.size() >> (8 * i));
  return out += message;
}

class TestGrpcClient {
 public:
  struct Call {
    std::string path, to_send;  // framed
    size_t num_sent = 0;
    bool half_closed = false, deferred = false;
    std::string received;
    std::map<std::string, std::string> headers;  // trailers among them
    bool closed = false;

    std::vector<std::string> messages() const {
      std::vector<std::string> out;
      for (size_t at = 0; at + 5 <= received.size();) {
        size_t size = 0;
        for (size_t i = 1; i < 5; ++i)
          size = size << 8 | static_cast<unsigned char>(received[at + i]);
        if (at + 5 + size > received.size()) break;
        out.push_back(received.substr(at + 5, size));
        at += 5 + size;
      }
      return out;
    }
  };

  explicit TestGrpcClient(int port) : socket_(port), h2_(**Http2Library::load()) {
    nghttp2_session_callbacks* callbacks = nullptr;
    h2_.callbacks_new(&callbacks);
    h2_.on_header(callbacks, on_header);
    h2_.on_data_chunk_recv(callbacks, on_data);
    h2_.on_stream_close(callbacks, on_close);
    h2_.client_new(&session_, callbacks, this);
    h2_.callbacks_del(callbacks);
    h2_.submit_settings(session_, 0, nullptr, 0);
    h2_.set_local_window_size(session_, 0, 0, 1 << 28);
  }
  ~TestGrpcClient() { h2_.session_del(session_); }
  TestGrpcClient(const TestGrpcClient&) = delete;

  int32_t begin(const std::string& path, const std::string& type = "application/grpc") {
    const auto header = [](const char* name, const std::string& value) {
      return nghttp2_nv{reinterpret_cast<uint8_t*>(const_cast<char*>(name)),
                        reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())),
                        std::strlen(name), value.size(), 0};
    };
    const std::string post = "POST", http = "http", host = "test", trailers = "trailers";
    const std::array<nghttp2_nv, 6> head = {
        header(":method", post), header(":scheme", http), header(":authority", host),
        header(":path", path),   header("te", trailers),  header("content-type", type)};
    nghttp2_data_provider body{};
    body.read_callback = on_read;
    const int32_t id = h2_.submit_request(session_, nullptr, head.data(), head.size(), &body, this);
    calls_[id].path = path;
    return id;
  }
  void send(int32_t id, std::string_view message) { send_raw(id, grpc_frame(message)); }
  void send_raw(int32_t id, std::string_view bytes) {
    calls_[id].to_send += bytes;
    resume(id);
  }
  void half_close(int32_t id) {
    calls_[id].half_closed = true;
    resume(id);
  }
  void reset(int32_t id) { h2_.submit_rst_stream(session_, 0, id, NGHTTP2_CANCEL); }

  // Writes what there is to write, at most `piece` bytes at a time.
  bool flush(size_t piece = 1 << 20) {
    const uint8_t* bytes = nullptr;
    for (ssize_t n; (n = h2_.mem_send(session_, &bytes)) > 0;)
      for (size_t at = 0; at < static_cast<size_t>(n); at += piece)
        if (!socket_.write({reinterpret_cast<const char*>(bytes) + at,
                            std::min(piece, static_cast<size_t>(n) - at)}))
          return false;
    return true;
  }
  // Reads, and writes, until `done`; false where the connection ends or nothing comes for long.
  template <typename Done>
  bool run_until(const Done& done) {
    while (!done()) {
      if (!flush()) return false;
      if (done()) break;
      const std::string bytes =
          socket_.read_until([](const std::string& text) { return !text.empty(); });
      if (bytes.empty()) return false;
      if (h2_.mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) < 0)
        return false;
    }
    return true;
  }
  bool run_until_closed(int32_t id) {
    return run_until([&] { return calls_[id].closed; });
  }
  // Until the call has so many messages.
  bool run_until_messages(int32_t id, size_t count) {
    return run_until([&] { return calls_[id].messages().size() >= count; });
  }
  Call& call(int32_t id) { return calls_[id]; }
  TestSocket& socket() { return socket_; }

 private:
  static TestGrpcClient& self(void* user) { return *static_cast<TestGrpcClient*>(user); }
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                       size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                       void* user) {
    self(user)
        .calls_[frame->hd.stream_id]
        .headers[{reinterpret_cast<const char*>(name), name_size}] = {
        reinterpret_cast<const char*>(value), value_size};
    return 0;
  }
  static int on_data(nghttp2_session*, uint8_t, int32_t id, const uint8_t* bytes, size_t size,
                     void* user) {
    self(user).calls_[id].received.append(reinterpret_cast<const char*>(bytes), size);
    return 0;
  }
  static int on_close(nghttp2_session*, int32_t id, uint32_t, void* user) {
    self(user).calls_[id].closed = true;
    return 0;
  }
  static ssize_t on_read(nghttp2_session*, int32_t id, uint8_t* to, size_t size, uint32_t* flags,
                         nghttp2_data_source*, void* user) {
    Call& call = self(user).calls_[id];
    const size_t n = std::min(size, call.to_send.size() - call.num_sent);
    std::memcpy(to, call.to_send.data() + call.num_sent, n);
    call.num_sent += n;
    if (call.num_sent < call.to_send.size()) return static_cast<ssize_t>(n);
    if (call.half_closed) {
      *flags |= NGHTTP2_DATA_FLAG_EOF;
      return static_cast<ssize_t>(n);
    }
    if (n > 0) return static_cast<ssize_t>(n);
    call.deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  void resume(int32_t id) {
    if (std::exchange(calls_[id].deferred, false)) h2_.resume_data(session_, id);
  }

  TestSocket socket_;
  const Http2Library& h2_;
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, Call> calls_;
};

}  // namespace espalier::net
