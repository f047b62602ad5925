// Responses that run without their client: what GET, a later stream and a cancellation find while
// they run. Once they have ended they are ordinary stored responses. Internal to the room.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/detached_call.h"
#include "server/dialects/response_store.h"
#include "server/task_thread.h"

namespace espalier::server {

// What a background run needs of the generation that it carries. On the task thread.
class BackgroundSource {
 public:
  virtual ~BackgroundSource() = default;
  virtual std::string snapshot() const = 0;  // the response object as it is now
  virtual void store_cancelled() = 0;        // ends it, and stores it with status "cancelled"
};

// One of them: takes its events, keeps them where it was made as a stream, and hands them on to the
// clients that read it. Not thread-safe: of the task thread, but for the calls that say otherwise.
class BackgroundRun final : public DetachedReader {
 public:
  // Called once, at the end.
  using EndCallback = std::function<void(BackgroundRun&)>;
  BackgroundRun(StoredKey key, bool keeps_events, ResponseStore& store, MemoryCharge charge,
                EndCallback end);

  const StoredKey& key() const { return key_; }
  // REQUIRES: nothing else has been called yet. On any thread.
  void attach(std::weak_ptr<DetachedCall> call, std::weak_ptr<BackgroundSource> source);

  // Appends events: the outcome of a failure that the stream does not carry.
  void append(std::string_view events) { on_bytes(std::string(events)); }
  void on_bytes(std::string bytes) override;
  void on_end(net::HttpResponse answer) override;

  // Empty once it has ended.
  std::string snapshot() const;
  void cancel();
  // Writes the events from number `from` on, and those that come; false: they are not kept.
  bool subscribe(const net::ResponsePtr& client, size_t from);

 private:
  void end();

  const StoredKey key_;
  const bool keeps_events_;
  ResponseStore& store_;
  MemoryCharge charge_;  // of the request and the events
  EndCallback end_;      // null once it has ended
  std::weak_ptr<DetachedCall> call_;
  std::weak_ptr<BackgroundSource> source_;
  std::vector<std::string> events_;  // by their sequence numbers
  bool events_lost_ = false;         // there was no memory for them
  std::vector<net::ResponsePtr> clients_;
};

// All of one server. Thread-safe.
class BackgroundResponses {
 public:
  explicit BackgroundResponses(ResponseStore& store)
      : store_(store), thread_(std::make_shared<TaskThread>("esp-background")) {}
  ~BackgroundResponses() { stop(); }

  struct Prepared {
    std::shared_ptr<BackgroundRun> run;
    std::shared_ptr<DetachedCall> call;  // for its generation to answer
  };
  // Null where the responses have no memory left for a request of so many bytes.
  Prepared prepare(const StoredKey& key, bool keeps_events, int64_t request_bytes);
  // From now on with() finds it. Before its generation begins.
  void add(const Prepared& prepared, std::weak_ptr<BackgroundSource> source);

  // Runs `task` on the thread with the run of this key; null: none runs.
  void with(StoredKey key, std::function<void(BackgroundRun*)> task);
  void stop();  // cancels all

 private:
  ResponseStore& store_;
  const std::shared_ptr<TaskThread> thread_;
  std::mutex mutex_;
  std::map<StoredKey, std::shared_ptr<BackgroundRun>> runs_;  // guarded by mutex_
  bool stopped_ = false;                                      // of stop()'s caller
};

}  // namespace espalier::server
