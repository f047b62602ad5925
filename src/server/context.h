// What every route of one server has at hand. Internal to the room.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/engine.h"
#include "net/http_server.h"
#include "server/chat_format.h"
#include "server/server.h"
#include "text/parse/reasoning_parser.h"

namespace espalier {
class Speller;
class Tenants;
}  // namespace espalier

namespace espalier::server {
class BackgroundResponses;
struct Batches;
class ModelRegistry;
struct Observations;
class ResponseStore;
}  // namespace espalier::server

namespace espalier::server {

inline constexpr std::string_view kCacheHitHeader = "X-Cache-Hit-Rate";

// Threads for what is too long for an I/O thread.
class WorkerPool {
 public:
  static constexpr size_t kTasksMax = 64;  // each may hold a body of the largest size
  // `name`: of the threads, with a number behind it.
  explicit WorkerPool(int num_threads, std::string_view name = "esp-work",
                      size_t tasks_max = kTasksMax);
  ~WorkerPool() { stop(); }
  // False when the queue is full or stopped.
  bool run(std::function<void()> task) { return tasks_.try_push(std::move(task)); }
  void stop();  // what is queued still runs

 private:
  BoundedQueue<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
};

struct WorkThreads {
  explicit WorkThreads(int num_workers)
      : workers(num_workers),
        grammars(1, "esp-grammar", kGrammarsWaitingMax),
        weights(2, "esp-weights", kUpdatesWaitingMax),
        sounds(kSoundThreads, "esp-sound", kSoundsWaitingMax) {}
  static constexpr size_t kGrammarsWaitingMax = 4;
  static constexpr size_t kUpdatesWaitingMax = 2;
  static constexpr int kSoundThreads = 2;
  static constexpr size_t kSoundsWaitingMax = 8;

  WorkerPool workers;
  // A thread for grammars that clients want compiled without a request. A hostile one takes as long
  // as --grammar-compile-seconds allows, which may not be the workers' time.
  WorkerPool grammars;
  // An update of weights may wait minutes for requests, which need the workers. The second thread
  // refuses another update meanwhile.
  WorkerPool weights;
  // Audio files are decoded and their spectrograms computed here, which takes seconds for an hour
  // of sound.
  WorkerPool sounds;
};

struct Context;

// What a server has once, however many models it has. Immutable after start() but for the atomics.
struct ServerParts {
  ServerParts();
  ~ServerParts();

  std::atomic<const net::HttpServer*> http{nullptr};  // while the server serves
  std::atomic<bool> stopping{false};
  int64_t created_unix = 0;  // seconds
  // Bounds over all requests, for /metrics; set before the server answers.
  std::vector<std::shared_ptr<MemoryAccount>> accounts;
  std::unique_ptr<Tenants> tenants;                 // null without --api-keys-file
  std::unique_ptr<ResponseStore> responses;         // answers of /v1/responses, by id
  std::unique_ptr<BackgroundResponses> background;  // those that run without a client
  std::unique_ptr<Batches> batches;                 // null without --storage-path
  // Of a server of several models; null and empty where it has one:
  std::unique_ptr<Engine> front_engine;  // of the routes that need no model
  std::unique_ptr<ModelRegistry> models;
  std::weak_ptr<Context> front;
};

// One model of a server. Shared by the routes and by the answers in progress, which may outlive the
// server by a moment. The engine outlives both. Immutable after open_context() but for the atomics.
struct Context : std::enable_shared_from_this<Context> {
  Context(ServerConfig c, Engine& e, std::shared_ptr<ServerParts> p);
  ~Context();

  ServerConfig config;
  Engine& engine;
  std::string model_name;
  std::optional<ChatFormat> chat;
  Status chat_missing;                              // why `chat` is not there
  std::string tool_call_format = "json";            // text/parse/tool_call_parser.h
  std::optional<ReasoningFormat> reasoning_format;  // none: reasoning is text
  std::unique_ptr<Observations> observed;           // what /metrics, /requests and /cache_tree show
  std::unique_ptr<WorkThreads> threads;
  const std::shared_ptr<ServerParts> parts;  // shared by the contexts of all models
  // Of `parts`:
  std::atomic<const net::HttpServer*>& http;
  std::atomic<bool>& stopping;
  std::vector<std::shared_ptr<MemoryAccount>>& accounts;
  std::unique_ptr<Tenants>& tenants;
  std::unique_ptr<ResponseStore>& responses;
  std::unique_ptr<BackgroundResponses>& background;
  std::unique_ptr<Batches>& batches;

  // The name of the weights that an epoch had (RequestStats::weight_epoch), or that serve now.
  std::string weight_version(int32_t epoch) const;
  std::string weight_version() const;

  // 32 hexadecimal digits that no other request of this process has.
  std::string make_rid();
  // The text of one token alone, special tokens included; "" without a tokenizer.
  std::string token_text(TokenId id) const;
  // The bytes that it stands for; empty for special tokens, and without a tokenizer.
  std::string_view token_bytes(TokenId id) const;
  // Which tokens a text begins with, made by the first call. REQUIRES a tokenizer.
  std::shared_ptr<const Speller> speller();
  // Where answers are charged. Null before the server serves.
  std::shared_ptr<MemoryAccount> outputs() const {
    return accounts.size() > 1 ? accounts[1] : nullptr;
  }
  // A body of this size parses and tokenises in about a millisecond.
  static constexpr size_t kInlineBytes = 16 << 10;
  // Runs `task` here when `num_bytes` (of a body, say) is little work, else on a worker. With the
  // workers' queue full the client gets a 503.
  void run_sized(size_t num_bytes, const net::ResponsePtr& response, std::function<void()> task);

 private:
  std::atomic<uint64_t> next_rid_{0};
  std::once_flag speller_made_;
  std::shared_ptr<const Speller> speller_;  // shared with the searches
};
using ContextPtr = std::shared_ptr<Context>;

}  // namespace espalier::server
