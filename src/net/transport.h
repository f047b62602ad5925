// A connection's socket, as it is or under TLS: plain bytes in and out, without waiting. Internal
// to the room; includes Asio.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "net/tls.h"

namespace espalier::net {

// Not thread-safe: belongs to the connection's I/O thread.
class Transport {
 public:
  // `tls`: either side of a connection; null: plain TCP.
  Transport(boost::asio::ip::tcp::socket socket, std::unique_ptr<Tls> tls)
      : socket_(std::move(socket)), tls_(std::move(tls)), handshaking_(tls_ != nullptr) {}

  boost::asio::ip::tcp::socket& socket() { return socket_; }

  // Reads at most `size` plain bytes. would_block: none is there; a handshake may have left bytes
  // to write then. eof: the client's stream has ended. Any other error ends the connection.
  size_t read(char* to, size_t size, boost::system::error_code& ec);
  // Whether read() may find bytes that the socket has given already, so that waiting for the socket
  // would miss them.
  bool has_input() const { return has_input_; }

  // Takes some of `plain` and writes to the socket once; returns the number of bytes taken, which
  // may still be unsent. would_block: the socket takes nothing now.
  size_t write(std::string_view plain, boost::system::error_code& ec);
  size_t num_unsent() const { return unsent_.size() - num_sent_; }  // bytes, encrypted

  bool is_handshaking() const { return handshaking_; }
  // The client's side: queues the first bytes of the handshake, which write("") sends.
  void begin_handshake();
  // Why the connection was ended; "" where TLS has no part in it.
  const std::string& failure() const { return failure_; }
  // Whether the first byte begins a request in plain HTTP; from then on there is no TLS.
  bool take_plain_http();
  // Whether the other side has ended its stream by TLS, not by the socket's end alone.
  bool has_ended() const { return tls_ != nullptr && tls_->has_ended(); }
  // Ends our stream: queues a close_notify, once. Whether anything is to be written for that.
  bool end_stream();
  // At once. `complete`: the stream is ended first, where the socket takes that; an answer that is
  // cut off must not look complete.
  void close(bool complete);

 private:
  // Advances the handshake; true once it is complete.
  bool shake_hands(boost::system::error_code& ec);
  void collect();  // what TLS wants to send
  void send(boost::system::error_code& ec);

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<Tls> tls_;
  bool handshaking_;
  bool begun_ = false;  // a byte has come
  bool plain_http_ = false;
  bool has_input_ = false;
  bool ended_ = false;  // our stream, or all of it by an error
  std::string unsent_;  // encrypted
  std::string failure_;
  size_t num_sent_ = 0;
};

}  // namespace espalier::net
