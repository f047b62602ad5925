// A worker that does to its connections what a test wants: a server of raw sockets whose answers
// are scripts. It speaks enough HTTP/1.1 for the router: one request a connection.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/test_socket.h"

namespace espalier::router {

// What becomes of a request after its `at`-th byte of answer, or of all of it.
struct Fate {
  enum class Kind { kAnswer, kRefuse, kCut, kStall } kind = Kind::kAnswer;
  size_t at = 0;  // kCut, kStall: bytes of the answer that go out before
};

// Each connection is served by a thread of its own, which ends with it. `fate` is called for each
// request but those for /health, /v1/models and, where it has tokens, /tokenize.
class TestWorker {
 public:
  TestWorker(std::string answer, std::function<Fate()> fate)
      : answer_(std::move(answer)), fate_(std::move(fate)) {
    std::tie(listener_, port_) = net::listen_on_loopback();
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~TestWorker() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int num_requests() const { return num_requests_; }
  std::string last_request() const {  // its head and body
    std::lock_guard lock(mutex_);
    return last_request_;
  }
  int num_gone() const { return num_gone_; }  // clients that left a stalled answer
  void set_healthy(bool healthy) { healthy_ = healthy; }
  void set_tokens(std::string tokens) {  // that /tokenize answers: "[1,2]"
    std::lock_guard lock(mutex_);
    tokens_ = std::move(tokens);
  }

 private:
  std::string tokens() const {
    std::lock_guard lock(mutex_);
    return tokens_;
  }
  void accept_all() {
    while (!stopping_) {
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) continue;
      std::lock_guard lock(mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    const std::string request = read_request(fd);
    if (request.starts_with("GET /health")) {
      send(fd, healthy_ ? "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                        : "HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    } else if (request.starts_with("GET /v1/models")) {
      send(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"data\":[{\"id\":\"test\"}]}");
    } else if (const std::string tokens = this->tokens();
               !tokens.empty() && request.starts_with("POST /tokenize")) {
      send(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"tokens\":" + tokens + "}");
    } else if (!request.empty()) {
      ++num_requests_;
      {
        std::lock_guard lock(mutex_);
        last_request_ = request;
      }
      answer(fd, fate_());
    }
    std::lock_guard lock(mutex_);
    open_.remove(fd);
    ::close(fd);
  }

  void answer(int fd, const Fate& fate) {
    switch (fate.kind) {
      case Fate::Kind::kAnswer:
        return send(fd, answer_);
      case Fate::Kind::kRefuse:
        return send(fd, "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy");
      case Fate::Kind::kCut:
        return send(fd, answer_.substr(0, fate.at));
      case Fate::Kind::kStall: {
        send(fd, answer_.substr(0, fate.at));
        char byte = 0;
        if (::recv(fd, &byte, 1, 0) <= 0 && !stopping_) ++num_gone_;
      }
    }
  }

  static std::string read_request(int fd) {
    std::string text;
    while (true) {
      const size_t head = text.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t at = text.find("Content-Length: ");
        const size_t length = at < head ? std::stoul(text.substr(at + 16)) : 0;
        if (text.size() >= head + 4 + length) return text;
      }
      char chunk[16 << 10];
      const ssize_t n = ::recv(fd, chunk, sizeof chunk, 0);
      if (n <= 0) return "";
      text.append(chunk, static_cast<size_t>(n));
    }
  }
  static void send(int fd, std::string_view text) {
    (void)::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  }

  const std::string answer_;
  const std::function<Fate()> fate_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stopping_{false}, healthy_{true};
  std::atomic<int> num_requests_{0}, num_gone_{0};
  mutable std::mutex mutex_;  // guards the next four
  std::string last_request_, tokens_;
  std::list<int> open_;
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

// An answer of server-sent events, chunked, and what its body is.
inline std::string event_stream_answer(const std::vector<std::string>& events) {
  std::string out =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
      "Connection: close\r\n\r\n";
  for (const std::string& event : events) {
    const std::string data = "data: " + event + "\n\n";
    char size[32];
    (void)std::snprintf(size, sizeof size, "%zx\r\n", data.size());
    out += size + data + "\r\n";
  }
  return out + "0\r\n\r\n";
}

}  // namespace espalier::router
