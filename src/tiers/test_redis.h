// For tests: a real Redis server of their own, and a proxy before it that breaks what passes.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/test_identity.h"
#include "net/test_socket.h"
#include "tiers/redis_session.h"
#include "tiers/remote_page_store.h"

namespace espalier {

// A redis-server (or valkey-server) from PATH, on a port of 127.0.0.1, without files. It ends with
// the object, and with the test's process.
class TestRedis {
 public:
  // More arguments of the command line, as "--requirepass", "secret". `identity`: it takes TLS,
  // too, on a port of its own.
  explicit TestRedis(std::vector<std::string> arguments = {},
                     const net::Identity* identity = nullptr)
      : arguments_(std::move(arguments)), identity_(identity) {
    for (int attempt = 0; attempt < 10 && pid_ < 0; ++attempt) {  // another may take the port
      const auto [listener, port] = net::listen_on_loopback();
      const auto [tls_listener, tls_port] = net::listen_on_loopback();
      ::close(listener);
      ::close(tls_listener);
      port_ = port;
      tls_port_ = tls_port;
      start();
    }
  }
  TestRedis(const TestRedis&) = delete;
  TestRedis& operator=(const TestRedis&) = delete;
  ~TestRedis() { stop(); }

  static std::string program() {
    for (const char* name : {"redis-server", "valkey-server"})
      if (std::system(("command -v " + std::string(name) + " > /dev/null").c_str()) == 0)
        return name;
    return "";
  }

  bool runs() const { return pid_ >= 0; }
  int port() const { return port_; }
  int tls_port() const { return tls_port_; }
  RedisServer server() const {
    RedisServer server;
    server.port = port_;
    server.connect_timeout = std::chrono::seconds(10);
    return server;
  }
  void send(int signal) const { ::kill(pid_, signal); }  // SIGSTOP stalls it, SIGCONT ends that
  void stop() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // On the same port; it does not run where that has been taken.
  void start() {
    std::vector<std::string> words = {
        program(),    "--port",  std::to_string(port_), "--bind",   "127.0.0.1", "--save", "",
        "--loglevel", "warning", "--logfile",           "/dev/null"};
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    if (identity_ != nullptr)
      for (const std::string& word :
           {std::string("--tls-port"), std::to_string(tls_port_), std::string("--tls-cert-file"),
            identity_->file, std::string("--tls-key-file"), identity_->key_file,
            std::string("--tls-ca-cert-file"), identity_->file, std::string("--tls-auth-clients"),
            std::string("no")})
        words.push_back(word);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    // A server that cannot have the port ends; one that runs answers in some way.
    while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
      net::TestSocket socket(port_);
      if (socket.connected() && socket.write("PING\r\n") && !socket.read_until(has_line).empty())
        return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid_ = -1;
  }

 private:
  static bool has_line(const std::string& text) { return text.find('\n') != std::string::npos; }

  const std::vector<std::string> arguments_;
  const net::Identity* const identity_;
  int port_ = 0, tls_port_ = 0;
  pid_t pid_ = -1;
};

#define ESP_SKIP_WITHOUT_REDIS()                                                    \
  if (espalier::TestRedis::program().empty())                                       \
  GTEST_SKIP() << "neither redis-server nor valkey-server is in PATH: tools/setup " \
                  "installs one"

// Passes bytes between clients and a server, and does what a fault says, once, to the server's
// answers when so many bytes of them have passed.
class FaultProxy {
 public:
  enum class Fault { kNone, kClose, kStall, kGarbage, kFlip, kOneByOne };

  explicit FaultProxy(int server_port) : server_port_(server_port) {
    std::tie(listener_, port_) = net::listen_on_loopback();
    thread_ = std::thread([this] { accept_all(); });
  }
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;
  ~FaultProxy() {
    stopped_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (std::thread& relay : relays_) relay.join();
    ::close(listener_);
  }
  int port() const { return port_; }
  void set_fault(Fault fault, size_t after_bytes) {
    const std::lock_guard lock(mutex_);
    fault_ = fault;
    bytes_left_ = after_bytes;
  }
  int64_t num_faults() const { return num_faults_; }

 private:
  void accept_all() {
    while (!stopped_) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      relays_.emplace_back([this, client] { relay(client); });
    }
  }
  void relay(int client) {
    net::TestSocket server(server_port_);
    bool is_stalled = false;
    while (!stopped_) {
      pollfd fds[2] = {{client, POLLIN, 0}, {server.fd(), POLLIN, 0}};
      if (::poll(fds, is_stalled ? 1 : 2, 5) <= 0) continue;
      char bytes[4096];
      if (fds[0].revents != 0) {
        const ssize_t n = ::recv(client, bytes, sizeof bytes, 0);
        if (n <= 0 || !server.write({bytes, static_cast<size_t>(n)})) break;
      }
      if (is_stalled || fds[1].revents == 0) continue;
      const ssize_t n = ::recv(server.fd(), bytes, sizeof bytes, 0);
      if (n <= 0 || !pass(client, {bytes, static_cast<size_t>(n)}, is_stalled)) break;
    }
    ::close(client);
  }
  // The fault that is due within the next bytes, and where.
  std::pair<Fault, size_t> take_fault(size_t num_bytes) {
    const std::lock_guard lock(mutex_);
    if (fault_ == Fault::kNone || bytes_left_ >= num_bytes) {
      bytes_left_ -= std::min(bytes_left_, num_bytes);
      return {Fault::kNone, 0};
    }
    ++num_faults_;
    return {std::exchange(fault_, Fault::kNone), std::exchange(bytes_left_, 0)};
  }
  // False: the connection ends.
  bool pass(int client, std::string bytes, bool& is_stalled) {
    const auto [fault, at] = take_fault(bytes.size());
    switch (fault) {
      case Fault::kNone:
        break;
      case Fault::kClose:
        send_all(client, bytes.substr(0, at));
        return false;
      case Fault::kStall:
        is_stalled = true;
        return send_all(client, bytes.substr(0, at));
      case Fault::kGarbage:
        bytes.insert(at, "\xff garbage $-7\r\n");
        break;
      case Fault::kFlip:
        bytes[at] ^= 4;
        break;
      case Fault::kOneByOne:
        for (const char& byte : bytes)
          if (!send_all(client, {&byte, 1})) return false;
        return true;
    }
    return send_all(client, bytes);
  }
  static bool send_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  const int server_port_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;  // of the next two
  Fault fault_ = Fault::kNone;
  size_t bytes_left_ = 0;
  std::atomic<int64_t> num_faults_ = 0;
  std::vector<std::thread> relays_;  // of accept_all() until it has ended
  std::thread thread_;
};

// A store of pages of `page_bytes` in a Redis server, with patience for a slow computer.
inline RemotePageStoreConfig test_remote_config(int64_t page_bytes,
                                                const std::string& scope = "a scope") {
  RemotePageStoreConfig config;
  config.kind = "redis";
  config.scope = scope;
  config.page_bytes = page_bytes;
  config.connect_timeout = config.lookup_timeout = config.transfer_timeout =
      std::chrono::seconds(30);
  config.retry_after = std::chrono::milliseconds(1);
  config.retry_after_max = std::chrono::milliseconds(20);
  return config;
}

inline std::unique_ptr<RemotePageStore> open_redis_store(const RemotePageStoreConfig& config,
                                                         const RedisServer& server) {
  auto store = RemotePageStore::open(config, [&]() -> Result<std::unique_ptr<RemoteSession>> {
    return RedisSession::create(server, digest_of_scope(config.scope));
  });
  EXPECT_TRUE(store) << store.error().to_string();
  return store ? std::move(*store) : nullptr;
}

// Waits until the store has reached its server.
inline void wait_until_connected(const RemotePageStore& store) {
  while (!store.problem().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// What num_leading() says once the server was asked.
inline size_t look_up_pages(PageStore& store, const std::vector<PageName>& names) {
  std::atomic<bool> is_done = false;
  store.look_up(names, [&] {
    is_done = true;
    is_done.notify_all();
  });
  is_done.wait(false);
  return store.num_leading(names);
}

}  // namespace espalier
