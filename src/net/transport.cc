#include "net/transport.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <new>
#include <utility>

#include "base/log.h"

namespace espalier::net {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 16 << 10;       // encrypted, at a time
constexpr size_t kEncryptBytes = 32 << 10;    // at a time: two records
constexpr size_t kKeptUnsentBytes = 4 << 10;  // of memory, by a connection that has nothing to send

}  // namespace

size_t Transport::read(char* to, size_t size, error_code& ec) {
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(to, size), ec);
  if (!std::exchange(has_input_, false)) {
    char chunk[kReadBytes];
    const size_t n = socket_.read_some(asio::buffer(chunk), ec);
    if (ec) return 0;
    if (!std::exchange(begun_, true)) plain_http_ = chunk[0] >= 'A' && chunk[0] <= 'Z';
    if (!plain_http_) tls_->feed({chunk, n});
  }
  if (plain_http_ || (handshaking_ && !shake_hands(ec))) {
    if (!ec) ec = asio::error::would_block;
    return 0;
  }
  const Result<size_t> n = tls_->decrypt({to, size});
  collect();
  if (!n) {
    failure_ = n.error().message();
    ended_ = true;
    ec = asio::error::connection_aborted;
    return 0;
  }
  if (*n == 0) ec = tls_->has_ended() ? error_code(asio::error::eof) : asio::error::would_block;
  has_input_ = *n > 0 && tls_->has_input();
  return *n;
}

void Transport::begin_handshake() {
  error_code ignored;
  (void)shake_hands(ignored);
}

bool Transport::shake_hands(error_code& ec) {
  const Result<bool> done = tls_->handshake();
  collect();
  if (done) {
    handshaking_ = !*done;
    return *done;
  }
  failure_ = done.error().message();
  log_debug("handshake failed why=\"{}\"", failure_);
  error_code ignored;
  send(ignored);  // the alert, for what it is worth
  ec = asio::error::connection_aborted;
  return false;
}

size_t Transport::write(std::string_view plain, error_code& ec) {
  if (tls_ == nullptr) return socket_.write_some(asio::buffer(plain.data(), plain.size()), ec);
  size_t num_taken = 0;
  if (num_unsent() == 0 && !plain.empty()) {
    num_taken = std::min(plain.size(), kEncryptBytes);
    if (handshaking_ || ended_ || !tls_->encrypt(plain.substr(0, num_taken)).ok()) {
      ec = asio::error::connection_aborted;
      return 0;
    }
    collect();
  }
  send(ec);
  return num_taken;
}

void Transport::send(error_code& ec) {
  if (num_unsent() == 0) return;
  num_sent_ += socket_.write_some(asio::buffer(unsent_.data() + num_sent_, num_unsent()), ec);
  if (num_unsent() > 0) return;
  num_sent_ = 0;
  unsent_.clear();
  if (unsent_.capacity() > kKeptUnsentBytes) std::string().swap(unsent_);
}

void Transport::collect() {
  if (num_sent_ > 0) unsent_.erase(0, std::exchange(num_sent_, 0));
  const std::string output = tls_->output();
  unsent_ += output;
}

bool Transport::take_plain_http() {
  if (!plain_http_ || tls_ == nullptr) return false;
  tls_.reset();
  handshaking_ = false;
  return true;
}

bool Transport::end_stream() {
  if (tls_ == nullptr || handshaking_ || std::exchange(ended_, true)) return false;
  tls_->end();
  collect();
  return num_unsent() > 0;
}

void Transport::close(bool complete) {
  error_code ignored;
  try {
    if (complete && end_stream()) send(ignored);
  } catch (const std::bad_alloc&) {  // the client sees the connection's end alone
  }
  socket_.close(ignored);
}

}  // namespace espalier::net
