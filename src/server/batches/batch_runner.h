// Runs batches beside what clients wait for: a line is begun only while no request goes before it
// (BatchTarget::is_busy), and only so many run at once. The owner with the fewest lines in progress
// goes first; the batches of one owner take turns, line by line.
//
// Thread-safe; all work is done on a thread of its own. A batch that a stop interrupts goes on,
// with the lines that have no result, when the next server starts on the same folder.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/batches/batch_store.h"
#include "server/detached_call.h"
#include "server/task_thread.h"

namespace espalier::server {

struct BatchSettings {
  int max_calls = 32;                        // at once, of all batches
  std::optional<int32_t> priority;           // of lines that state none; none: priorities are off
  Duration retry = std::chrono::seconds(1);  // after a full queue or disk
  std::function<Status()> delete_expired;    // called every second, behind that of the files
};

// One line, as the target answers it.
struct LineCall {
  const std::string& path;
  const std::string& owner;  // of the batch: whose call it is
  std::string body;
};

// What a batch runs on.
struct BatchTarget {
  // Answers a POST of this body to this path. 429: beyond the limits of its owner; the line waits
  // as long as Retry-After says.
  std::function<void(LineCall, net::ResponsePtr)> call;
  // Whether requests of clients wait, before which no line of this owner is to begin.
  std::function<bool(const std::string& owner)> is_busy;
};

class BatchRunner {
 public:
  static constexpr size_t kMaxLines = 50'000;  // of a batch, as OpenAI has it

  BatchRunner(FileStore& files, BatchStore& store, BatchTarget target, BatchSettings settings);
  ~BatchRunner() { stop(); }

  void start();                                 // goes on with what the store has unfinished
  void add(std::string id, std::string owner);  // of a batch that the store has
  // Ends a batch early: its results so far are kept. kFailedPrecondition where it has ended. `done`
  // is called on the runner's thread.
  void cancel(std::string id, std::function<void(Result<Batch>)> done);
  // Interrupts what runs. Called by one thread.
  void stop();

 private:
  struct Run;   // a batch in progress
  struct Line;  // takes the answer of one
  using Runs = std::list<std::shared_ptr<Run>>;

  struct Waiting {
    std::string id, owner;
  };

  void load();
  void open_waiting();
  void open(const std::string& id);
  Status read_input(Run& run);
  void refuse_input(Batch& batch, const Status& why);
  void pump();
  void pump_later(Duration delay);
  void tick();
  void retry_later(Run& run, int64_t line, Duration delay);
  size_t num_open_of(std::string_view owner) const;
  std::map<std::string_view, size_t> num_calls_by_owner() const;
  Run* next_run(bool& waits_for_clients);
  void begin_line(Run& run);
  void end_line(Run& run, int64_t line, net::HttpResponse answer);
  bool keep(Run& run, int64_t line, bool failed, const std::string& record);
  void expire(Run& run);
  void finish_if_done(Run& run);
  void finish(Run& run);
  Run* find(std::string_view id);

  FileStore& files_;
  BatchStore& store_;
  const BatchTarget target_;
  const BatchSettings settings_;
  const std::shared_ptr<TaskThread> thread_;

  // The thread's.
  std::deque<Waiting> waiting_;  // batches that are not open yet
  Runs runs_;                    // the first has the next turn
  int num_calls_ = 0;
  TimePoint pump_at_ = TimePoint::max();  // a pump() is due then
  bool stopping_ = false;                 // no line is begun any more

  bool stopped_ = false;  // of stop()'s caller
};

}  // namespace espalier::server
