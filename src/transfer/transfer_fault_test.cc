// Connections that are cut, reset and damaged at every border of a frame and at drawn bytes, by a
// relay between real sockets; and servers that are fed mutated frames. Each time the fetch ends
// once, with all pages or with an error, and the server keeps nothing of it.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <optional>

#include "base/big_endian.h"
#include "transfer/test_prompt.h"

namespace espalier::transfer {
namespace {

enum class Fault { kNone, kCut, kFlip, kStall };

// Null where nothing answers.
std::unique_ptr<net::ByteStream> connect(int port) {
  auto stream = std::make_unique<net::ByteStream>();
  const Status status = stream->connect({.host = "127.0.0.1", .port = port});
  return status.ok() ? std::move(stream) : nullptr;
}

// Passes bytes between a decode server and a prefill server; behind `at` bytes of one direction it
// cuts both connections, flips a bit, or passes on nothing more.
class Relay {
 public:
  Relay(int server_port, bool to_decode, size_t at, Fault fault)
      : server_port_(server_port), to_decode_(to_decode), at_(at), fault_(fault) {
    auto listener = net::TcpListener::listen("127.0.0.1", 0);
    EXPECT_TRUE(listener);
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() { stop(); }
  int port() const { return listener_->port(); }
  // All that went one way; after stop().
  const std::string& passed(bool to_decode) const { return passed_[to_decode ? 1 : 0]; }
  // Ends both connections, and the threads that pass their bytes.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
      listener_->shutdown();
      for (const auto& side : sides_)
        if (side != nullptr) side->interrupt();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    auto decode = listener_->accept(std::chrono::seconds(60));
    auto prefill = connect(server_port_);
    if (decode == nullptr || prefill == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      sides_[0] = std::move(decode);
      sides_[1] = std::move(prefill);
      if (is_stopped_) return;
    }
    std::thread back([this] { pass(*sides_[1], *sides_[0], true); });
    pass(*sides_[0], *sides_[1], false);
    back.join();
  }
  void pass(net::ByteStream& from, net::ByteStream& to, bool to_decode) {
    std::string& passed = passed_[to_decode ? 1 : 0];
    char byte = 0;
    while (from.read_exactly({&byte, 1}, std::chrono::seconds(60)).ok()) {
      const bool is_here =
          fault_ != Fault::kNone && to_decode == to_decode_ && passed.size() >= at_;
      if (is_here && fault_ == Fault::kCut) break;
      if (is_here && fault_ == Fault::kFlip && passed.size() == at_) byte ^= 4;
      passed += byte;
      if (is_here && fault_ == Fault::kStall) continue;
      if (!to.write_all({&byte, 1}, std::chrono::seconds(60)).ok()) break;
    }
    from.interrupt();
    to.interrupt();
  }

  const int server_port_;
  const bool to_decode_;
  const size_t at_;
  const Fault fault_;
  std::unique_ptr<net::TcpListener> listener_;
  std::mutex mutex_;
  std::unique_ptr<net::ByteStream> sides_[2];
  bool is_stopped_ = false;
  std::string passed_[2];
  std::thread thread_;
};

// Where frames end.
std::vector<size_t> borders(const std::string& bytes) {
  std::vector<size_t> ends = {0};
  while (ends.back() + kFrameHeaderBytes <= bytes.size())
    ends.push_back(ends.back() + kFrameHeaderBytes +
                   read_big_endian(std::string_view(bytes).substr(ends.back(), 4)));
  return ends;
}

// Connections that are damaged or silent go to the impatient server alone, so that no healthy
// transfer depends on how fast this computer is.
class TransferFaults : public testing::Test {
 protected:
  static constexpr Duration kShort = std::chrono::milliseconds(150);
  static constexpr Duration kLong = std::chrono::seconds(60);
  static PageServerConfig config(Duration silence_max) {
    return {.shape = test_shape(64),
            .wait_interval = std::chrono::milliseconds(10),
            .silence_max = silence_max};
  }
  TransferFaults() : patient_(config(kLong)), impatient_(config(kShort)) {}

  TestServer& server_for(Fault fault) {
    return fault == Fault::kNone || fault == Fault::kCut ? patient_ : impatient_;
  }
  Result<Fetched> transfer(TestServer& server, Relay& relay, Duration silence_max) {
    TestPrompt prompt{.key = {.room = ++room_}, .num_tokens = 10, .num_cached = 1};
    prompt.shape = test_shape(64);
    const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
    prompt.compute(*room, 2);
    auto fetched = test_fetch(prompt, {.port = relay.port(), .silence_max = silence_max});
    relay.stop();
    while (server.server->num_connections() > 0)  // each one ends by itself
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server.rooms.remove(prompt.key, room);  // where no reader came so far
    EXPECT_EQ(server.rooms.num_bytes(), 0);
    EXPECT_EQ(server.rooms.num_rooms(), 0u);
    return fetched;
  }
  void check(bool to_decode, size_t at, Fault fault) {
    SCOPED_TRACE(
        fmt::format("to_decode={} at={} fault={}", to_decode, at, static_cast<int>(fault)));
    TestServer& server = server_for(fault);
    Relay relay(server.server->port(), to_decode, at, fault);
    const auto fetched = transfer(server, relay, fault == Fault::kStall ? kShort : kLong);
    if (fetched) {
      EXPECT_EQ(fetched->first.token, 42);
      return;
    }
    const StatusCode code = fetched.error().code();
    EXPECT_NE(code, StatusCode::kOk);
    EXPECT_NE(code, StatusCode::kInternal);
    EXPECT_FALSE(fetched.error().message().empty());
  }
  void expect_healthy(std::string* to_prefill = nullptr, std::string* to_decode = nullptr) {
    Relay relay(patient_.server->port(), false, 0, Fault::kNone);
    const auto fetched = transfer(patient_, relay, kLong);
    EXPECT_TRUE(fetched) << fetched.error().to_string();
    if (to_prefill != nullptr) *to_prefill = relay.passed(false);
    if (to_decode != nullptr) *to_decode = relay.passed(true);
  }

  TestServer patient_, impatient_;
  uint64_t room_ = 0;
};

TEST_F(TransferFaults, AtEveryBorderAndAtDrawnBytes) {
  size_t num_points = 0;
  std::string passed[2];
  expect_healthy(&passed[0], &passed[1]);
  for (const bool to_decode : {false, true}) {
    const std::string& bytes = passed[to_decode ? 1 : 0];
    for (const size_t border : borders(bytes))
      for (const size_t before : {0, 1, 5})
        for (const size_t behind : {0, 1}) {
          if (border < before || border - before + behind >= bytes.size()) continue;
          check(to_decode, border - before + behind, Fault::kCut);
          ++num_points;
        }
    Rng rng(to_decode ? 0xfa02 : 0xfa01);
    for (int i = 0; i < 60; ++i) {
      check(to_decode, rng.below(bytes.size()), i % 2 == 0 ? Fault::kCut : Fault::kFlip);
      ++num_points;
    }
    for (const size_t border : borders(bytes)) {
      if (border < bytes.size()) check(to_decode, border, Fault::kStall);
      ++num_points;
    }
  }
  EXPECT_GT(num_points, 150u);
  expect_healthy();
}

// A caller that sends anything: the server answers or closes, and goes on.
TEST_F(TransferFaults, MutatedGreetingsAreRefused) {
  const char* const scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const int num_rounds = 300 * (scale == nullptr ? 1 : std::max(1, std::atoi(scale)));
  Rng rng(0xbad);
  const TestPrompt prompt{.num_tokens = 9};
  for (int i = 0; i < num_rounds; ++i) {
    SCOPED_TRACE(i);
    const auto stream = connect(impatient_.server->port());
    ASSERT_NE(stream, nullptr);
    FrameStream frames(*stream, std::chrono::seconds(60));
    const auto challenge = frames.receive(kControlBytesMax);
    ASSERT_TRUE(challenge && challenge->type == FrameType::kChallenge);
    const Nonce nonce = decode_challenge(challenge->payload)->nonce;
    std::string body = encode(prompt.hello());
    if (rng.below(2) == 0) body[rng.below(body.size())] ^= static_cast<char>(1 + rng.below(255));
    if (rng.below(4) == 0) body.resize(rng.below(body.size()));
    const Proof proof =
        prove(rng.below(2) == 0 ? "token" : "wrong", {"decode", text_of(nonce), body});
    body += text_of(proof);
    if (rng.below(4) == 0) body.resize(rng.below(body.size()));
    std::string frame;
    append_big_endian(frame, rng.below(4) == 0 ? rng() : body.size(), 4);
    frame += static_cast<char>(rng.below(4) == 0 ? rng.below(256) : 2);
    frame += body;
    (void)stream->write_all(frame, std::chrono::seconds(60));
    if (rng.below(2) == 0) (void)frames.receive(kControlBytesMax);
  }
  expect_healthy();
}

}  // namespace
}  // namespace espalier::transfer
