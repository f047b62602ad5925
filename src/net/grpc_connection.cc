#include "net/grpc_connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"

namespace espalier::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kGrpcReadBytes = 64 << 10;      // at a time
constexpr int kReadsATurn = 4;                   // before others have theirs
constexpr size_t kFramedBytes = 256 << 10;       // framed ahead of the socket
constexpr size_t kReadPrefixBytes = 256 << 10;   // of an answer, kept at least
constexpr int32_t kStreamWindow = 1 << 20;       // that a client may send before it is read
constexpr int32_t kConnectionWindow = 64 << 20;  // likewise, all calls together
constexpr size_t kPrefixBytes = 5;               // of a message: a flag and its length
// Streams that a client may reset, at once and a second. A proxy resets every call that it has
// ended, so the library's own limit (1,000 and 33) would end its connection.
constexpr uint64_t kResetBurst = 1000000, kResetRate = 100000;
// A peer that is gone: its connection ends after a minute of silence.
constexpr int kKeepIdleS = 30, kKeepIntervalS = 10, kKeepCount = 3, kUserTimeoutMs = 60000;

void find_dead_peers(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&socket](int option, int value) {
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, kKeepIdleS);
  set(TCP_KEEPINTVL, kKeepIntervalS);
  set(TCP_KEEPCNT, kKeepCount);
  set(TCP_USER_TIMEOUT, kUserTimeoutMs);
}

int new_session(const Http2Library& h2, nghttp2_session** out, nghttp2_session_callbacks* callbacks,
                void* user) {
  nghttp2_option* option = nullptr;
  if (const int failed = h2.option_new(&option); failed != 0) return failed;
  if (h2.set_stream_reset_rate_limit != nullptr)
    h2.set_stream_reset_rate_limit(option, kResetBurst, kResetRate);
  const int made = h2.server_new(out, callbacks, user, option);
  h2.option_del(option);
  return made;
}

nghttp2_nv header_of(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

// gRPC's escape of a status' message: what is no printable ASCII, and "%".
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c >= ' ' && c <= '~' && c != '%') {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  return out;
}

}  // namespace

class GrpcConnection::Call final : public GrpcCall {
 public:
  Call(GrpcConnection& connection, int32_t stream) : connection_(connection), stream_(stream) {}

  std::string path, method, content_type;

  void begin();
  void take(std::string_view bytes);
  void end_input() {
    if (handler_ != nullptr && !finished_) handler_->on_end(*this);
  }
  ssize_t read_output(uint8_t* to, size_t size, uint32_t* flags);

  void send(std::string_view message) override;
  void finish(GrpcStatus status, std::string_view message) override;

 private:
  void refuse_http(const char* status);
  void take_message(std::string_view message) { handler_->on_message(*this, message); }
  void resume();

  GrpcConnection& connection_;
  const int32_t stream_;
  std::unique_ptr<GrpcHandler> handler_;
  std::string input_;   // of a message that is not complete
  std::string output_;  // messages that are not framed yet
  size_t num_read_ = 0;
  bool deferred_ = false, finished_ = false;
  GrpcStatus status_ = GrpcStatus::kOk;
  std::string status_message_;
};

// The request's head is complete.
void GrpcConnection::Call::begin() {
  const auto& methods = connection_.shared_->config.methods;
  if (method != "POST") return refuse_http("405");
  if (!content_type.starts_with("application/grpc")) return refuse_http("415");
  const std::array<nghttp2_nv, 2> head = {header_of(":status", "200"),
                                          header_of("content-type", "application/grpc")};
  nghttp2_data_provider body{};
  body.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t size, uint32_t* flags,
                          nghttp2_data_source* source, void*) -> ssize_t {
    return static_cast<Call*>(source->ptr)->read_output(to, size, flags);
  };
  body.source.ptr = this;
  connection_.h2_.submit_response(connection_.session_, stream_, head.data(), head.size(), &body);
  const auto found = methods.find(path);
  if (found == methods.end())
    return finish(GrpcStatus::kUnimplemented, "there is no method " + path);
  handler_ = found->second();
}

void GrpcConnection::Call::refuse_http(const char* status) {
  const nghttp2_nv head = header_of(":status", status);
  connection_.h2_.submit_response(connection_.session_, stream_, &head, 1, nullptr);
  finished_ = true;
}

void GrpcConnection::Call::take(std::string_view bytes) {
  if (handler_ == nullptr || finished_) return;
  if (!input_.empty()) {
    input_ += bytes;
    bytes = input_;
  }
  size_t at = 0;
  while (!finished_ && bytes.size() - at >= kPrefixBytes) {
    const auto* const prefix = reinterpret_cast<const unsigned char*>(bytes.data() + at);
    const size_t size = size_t{prefix[1]} << 24 | size_t{prefix[2]} << 16 | size_t{prefix[3]} << 8 |
                        size_t{prefix[4]};
    if (prefix[0] != 0)
      return finish(GrpcStatus::kUnimplemented, "messages are not to be compressed");
    if (size > connection_.shared_->config.max_message_bytes)
      return finish(GrpcStatus::kResourceExhausted,
                    fmt::format("a message of {} bytes is too long", size));
    if (bytes.size() - at - kPrefixBytes < size) break;
    take_message(bytes.substr(at + kPrefixBytes, size));
    at += kPrefixBytes + size;
  }
  if (input_.empty()) {
    input_ = bytes.substr(at);
  } else {
    input_.erase(0, at);
  }
}

void GrpcConnection::Call::send(std::string_view message) {
  if (finished_) return;
  if (output_.size() - num_read_ + message.size() > connection_.shared_->config.max_pending_bytes)
    return finish(GrpcStatus::kResourceExhausted, "the answer is not read");
  const auto size = static_cast<uint32_t>(message.size());
  const std::array<char, kPrefixBytes> prefix = {
      0, static_cast<char>(size >> 24), static_cast<char>(size >> 16), static_cast<char>(size >> 8),
      static_cast<char>(size)};
  output_.append(prefix.data(), prefix.size());
  output_ += message;
  resume();
}

void GrpcConnection::Call::finish(GrpcStatus status, std::string_view message) {
  if (std::exchange(finished_, true)) return;
  status_ = status;
  status_message_ = escaped(message);
  resume();
}

void GrpcConnection::Call::resume() {
  if (std::exchange(deferred_, false)) connection_.h2_.resume_data(connection_.session_, stream_);
}

ssize_t GrpcConnection::Call::read_output(uint8_t* to, size_t size, uint32_t* flags) {
  const size_t n = std::min(size, output_.size() - num_read_);
  std::copy_n(output_.data() + num_read_, n, to);
  num_read_ += n;
  const bool empty = num_read_ == output_.size();
  if (empty) {
    output_.clear();
    num_read_ = 0;
  } else if (num_read_ >= std::max(kReadPrefixBytes, output_.size() / 2)) {
    output_.erase(0, num_read_);
    num_read_ = 0;
  }
  if (!empty || (n > 0 && !finished_)) return static_cast<ssize_t>(n);
  if (!finished_) {
    deferred_ = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
  const std::string status = std::to_string(static_cast<int>(status_));
  const std::array<nghttp2_nv, 2> trailer = {header_of("grpc-status", status),
                                             header_of("grpc-message", status_message_)};
  connection_.h2_.submit_trailer(connection_.session_, stream_, trailer.data(),
                                 status_message_.empty() ? 1 : 2);
  return static_cast<ssize_t>(n);
}

// nghttp2 is C: an exception that would pass through it ends the connection instead.
struct GrpcConnection::Callbacks {
  template <typename Step>
  static int guarded(const Step& step) {
    try {
      step();
      return 0;
    } catch (const std::exception& e) {
      const MemoryReserveScope reserve;
      log_error("a connection of gRPC was closed what={}", e.what());
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
  }
  static GrpcConnection& self(void* user) { return *static_cast<GrpcConnection*>(user); }
  static bool is_request(const nghttp2_frame* frame) {
    return frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
  }

  static int begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    return guarded([&] {
      if (is_request(frame)) self(user).begin_call(frame->hd.stream_id);
    });
  }
  static int header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                    size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                    void* user) {
    return guarded([&] {
      Call* const call = is_request(frame) ? self(user).find(frame->hd.stream_id) : nullptr;
      if (call == nullptr) return;
      const std::string_view key(reinterpret_cast<const char*>(name), name_size);
      const std::string_view text(reinterpret_cast<const char*>(value), value_size);
      if (key == ":path") call->path = text;
      if (key == ":method") call->method = text;
      if (key == "content-type") call->content_type = text;
    });
  }
  static int frame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    return guarded([&] {
      if (frame->hd.type == NGHTTP2_SETTINGS) self(user).deadline_.clear();
      Call* const call = self(user).find(frame->hd.stream_id);
      if (call == nullptr) return;
      if (is_request(frame)) call->begin();
      const bool is_input = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
      if (is_input && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) call->end_input();
    });
  }
  static int data(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* bytes, size_t size,
                  void* user) {
    return guarded([&] {
      if (Call* const call = self(user).find(stream))
        call->take({reinterpret_cast<const char*>(bytes), size});
    });
  }
  static int stream_close(nghttp2_session*, int32_t stream, uint32_t, void* user) {
    return guarded([&] { self(user).calls_.erase(stream); });
  }
};

GrpcConnection::GrpcConnection(Transport transport, std::shared_ptr<IoThread> io,
                               std::shared_ptr<GrpcShared> shared)
    : io_(std::move(io)),
      shared_(std::move(shared)),
      h2_(*shared_->h2),
      transport_(std::move(transport)),
      deadline_(io_->context().get_executor()) {}

GrpcConnection::~GrpcConnection() {
  if (session_ != nullptr) h2_.session_del(session_);
}

template <typename Step>
void GrpcConnection::run(const Step& step) {
  if (Callbacks::guarded(step) != 0) close();
}

void GrpcConnection::start() {
  run([this] { begin(); });
}

void GrpcConnection::begin() {
  error_code ignored;
  transport_.socket().non_blocking(true, ignored);
  transport_.socket().set_option(tcp::no_delay(true), ignored);
  find_dead_peers(transport_.socket());
  deadline_.start(weak_from_this(), [this] { close(); });
  deadline_.set(shared_->config.greeting_timeout);
  nghttp2_session_callbacks* callbacks = nullptr;
  if (h2_.callbacks_new(&callbacks) != 0) return close();
  h2_.on_begin_headers(callbacks, Callbacks::begin_headers);
  h2_.on_header(callbacks, Callbacks::header);
  h2_.on_frame_recv(callbacks, Callbacks::frame);
  h2_.on_data_chunk_recv(callbacks, Callbacks::data);
  h2_.on_stream_close(callbacks, Callbacks::stream_close);
  const int made = new_session(h2_, &session_, callbacks, this);
  h2_.callbacks_del(callbacks);
  if (made != 0) return close();
  const std::array<nghttp2_settings_entry, 2> settings = {
      {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, shared_->config.max_calls},
       {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow}}};
  h2_.submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  h2_.set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
  on_readable();
}

GrpcConnection::Call* GrpcConnection::find(int32_t stream) {
  const auto at = calls_.find(stream);
  return at == calls_.end() ? nullptr : at->second.get();
}

void GrpcConnection::begin_call(int32_t stream) {
  calls_.emplace(stream, std::make_unique<Call>(*this, stream));
}

void GrpcConnection::on_readable() {
  bool has_more = !closed_;
  for (int i = 0; has_more && i < kReadsATurn; ++i) has_more = read_once();
  if (closed_) return;
  write();
  if (close_if_done()) return;
  if (has_more || transport_.has_input())
    return io_->post([self = shared_from_this()] { self->run([&] { self->on_readable(); }); });
  wait_readable();
}

bool GrpcConnection::close_if_done() {
  if (!closed_ && h2_.want_read(session_) == 0 && h2_.want_write(session_) == 0 && output_.empty())
    close();
  return closed_;
}

bool GrpcConnection::read_once() {
  thread_local std::string bytes(kGrpcReadBytes, '\0');
  error_code ec;
  const size_t n = transport_.read(bytes.data(), bytes.size(), ec);
  const bool is_plain_http = transport_.take_plain_http();
  if (ec == asio::error::would_block && !is_plain_http) return false;
  if (ec || n == 0) {
    close();
    return false;
  }
  if (h2_.mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), n) < 0) {
    write();  // why, for the client
    close();
    return false;
  }
  return n == bytes.size();  // else others have their turn
}

void GrpcConnection::write() {
  while (!closed_) {
    while (output_.size() - num_written_ < kFramedBytes) {
      const uint8_t* bytes = nullptr;
      const ssize_t n = h2_.mem_send(session_, &bytes);
      if (n < 0) return close();
      if (n == 0) break;
      output_.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
    }
    if (num_written_ == output_.size() && transport_.num_unsent() == 0) return;
    if (transport_.is_handshaking() && transport_.num_unsent() == 0) return;
    error_code ec;
    const std::string_view left = std::string_view(output_).substr(num_written_);
    num_written_ += transport_.write(transport_.is_handshaking() ? std::string_view() : left, ec);
    if (num_written_ == output_.size() || num_written_ > kFramedBytes) {
      output_.erase(0, num_written_);
      num_written_ = 0;
    }
    if (ec == asio::error::would_block) return wait_writable();
    if (ec) return close();
  }
}

void GrpcConnection::wait_readable() {
  if (std::exchange(waiting_readable_, true)) return;
  transport_.socket().async_wait(tcp::socket::wait_read,
                                 [self = shared_from_this()](error_code ec) {
                                   self->waiting_readable_ = false;
                                   if (!ec) self->run([&] { self->on_readable(); });
                                 });
}

void GrpcConnection::wait_writable() {
  if (std::exchange(waiting_writable_, true)) return;
  transport_.socket().async_wait(tcp::socket::wait_write,
                                 [self = shared_from_this()](error_code ec) {
                                   self->waiting_writable_ = false;
                                   if (ec || self->closed_) return;
                                   self->run([&] {
                                     self->write();
                                     (void)self->close_if_done();
                                   });
                                 });
}

void GrpcConnection::close() {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  if (!transport_.failure().empty())
    log_debug("connection of gRPC ended why=\"{}\"", transport_.failure());
  deadline_.stop();
  transport_.close(false);
  calls_.clear();
  const std::lock_guard lock(shared_->mutex);
  shared_->open.erase(self);
  if (shared_->open.empty()) shared_->none_open.notify_all();
}

void GrpcConnection::begin_shutdown() {
  if (closed_ || session_ == nullptr) return close();
  run([this] {
    h2_.submit_goaway(session_, NGHTTP2_FLAG_NONE, h2_.last_stream(session_), NGHTTP2_NO_ERROR,
                      nullptr, 0);
    on_readable();
  });
}

}  // namespace espalier::net
