// Publishes the prefix cache's events over ZeroMQ as vLLM and SGLang do, so that routers which read
// theirs (llm-d's, `espalier route`) know what this server's cache holds. Internal to the room.
//
// A message has three frames: the topic, the batch's number (8 bytes, big-endian; 0, 1, 2 ...) and
// the batch in MessagePack:
//   [seconds since 1970, [event ...], data-parallel rank]
//   ["BlockStored", [hash ...], parent's hash or nil, [token ...], block size, nil, "GPU",
//    LoRA adapter or nil, [[key], nil ...]]
//                               the last only where a prefix begins that has an extra_key or a salt
//   ["BlockStored", [hash ...], nil, [], block size, nil, "CPU", nil]    copies in the host's
//   memory
//   ["BlockRemoved", [hash ...], "GPU" or "CPU"]
//   ["AllBlocksCleared"]
// Who has missed batches asks the replay socket for all from a number on, and gets
// ["", number, batch] for each and ["", -1, ""] at the end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/status.h"
#include "net/zmq_socket.h"
#include "seams/cache_event.h"
#include "server/server.h"

namespace espalier {
class Engine;
}

namespace espalier::server {

// A hash is the first 64 bits of a page's name, as in GET /kv_events.
std::string encode_kv_events(std::span<const CacheEvent> events, int32_t page_size,
                             double unix_time, int32_t dp_rank = 0);

// Where the publisher of a replica listens or connects, as vLLM has it: the ports of an address in
// TCP follow each other, unless they are chosen; any other address gets "_dpN" behind it.
KvEventsConfig kv_events_of_rank(const KvEventsConfig& config, int32_t dp_rank);

// A thread of its own reads the engine's events every 10 ms and sends what has come, so neither the
// scheduler nor a request waits for a subscriber. The last batches are kept for replay: as many as
// the engine keeps events, and 256 MiB. The engine outlives it.
class KvEventPublisher {
 public:
  // kInvalidArgument or kFailedPrecondition names the endpoint that cannot be used; kUnavailable
  // where libzmq is missing.
  // dp_rank: of the replica that `engine` is, whose addresses are kv_events_of_rank().
  static Result<std::unique_ptr<KvEventPublisher>> start(const KvEventsConfig& config,
                                                         const Engine& engine, int32_t dp_rank = 0);
  ~KvEventPublisher();

  // Where it listens, with the ports that were chosen; as it connects, where it does not listen.
  const KvEventsConfig& config() const { return config_; }
  int64_t num_batches() const { return num_batches_; }  // published

 private:
  static constexpr size_t kEventsPerBatch = 256;
  static constexpr size_t kKeptBytesMax = size_t{256} << 20;

  KvEventPublisher(KvEventsConfig config, const Engine& engine, int32_t dp_rank,
                   net::ZmqSocket events);
  void run();
  bool publish();  // whether there was an event
  void answer_replays();
  void keep(uint64_t number, std::string batch);

  KvEventsConfig config_;
  const Engine& engine_;
  const int32_t dp_rank_;
  net::ZmqSocket events_;
  std::optional<net::ZmqSocket> replay_;
  uint64_t next_event_ = 0;   // of the engine's
  uint64_t next_number_ = 0;  // of a batch
  struct Kept {
    uint64_t number = 0;
    std::string batch;
  };
  std::deque<Kept> kept_;
  size_t kept_bytes_ = 0;
  std::atomic<int64_t> num_batches_{0};

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded
  std::thread thread_;     // last: it uses the rest
};

}  // namespace espalier::server
