// Batches and the results of their lines, in the database of the file store: a restarted server
// goes on with the lines that have no result.
//
// Thread-safe. Calls wait for the disk: not for I/O threads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/batches/file_store.h"
#include "server/json_writer.h"

namespace espalier::server {

inline constexpr std::string_view kBatchPrefix = "batch_", kMessageBatchPrefix = "msgbatch_";
// Of files that are no client's: the requests and results of Anthropic's batches.
inline constexpr std::string_view kMessageBatchPurpose = "message_batch";

// As OpenAI has it.
struct Batch {
  std::string id;     // "batch_", of Anthropic's "msgbatch_", and 32 hexadecimal digits
  std::string owner;  // as FileRecord's; its lines run as this tenant's, its results are the same's
  std::string status;  // validating, failed, in_progress, finalizing, completed, expired,
                       // cancelling or cancelled
  std::string endpoint, input_file_id, completion_window;
  std::string metadata;                                      // JSON
  std::string errors = "null";                               // JSON: why the input was refused
  std::string output_file_id, error_file_id;                 // empty: there is none
  int64_t output_expires_after = 0;                          // seconds; 0: never
  std::map<std::string, int64_t> times;                      // "created_at" and so on, Unix seconds
  int64_t num_total = 0, num_completed = 0, num_failed = 0;  // lines

  bool ended() const {
    return status == "failed" || status == "completed" || status == "expired" ||
           status == "cancelled";
  }
};

void write_batch(JsonWriter& w, const Batch& batch);

class BatchStore {
 public:
  explicit BatchStore(FileStore& files) : files_(files), shared_(files.shared()) {}

  Result<Batch> add(Batch batch);  // sets created_at, and an id where there is none
  Result<Batch> get(std::string_view id, const OwnerFilter& filter);
  // Of those whose ids begin so, newest first.
  Result<ListPage<Batch>> list(const ListQuery& query, const OwnerFilter& filter,
                               std::string_view prefix = kBatchPrefix);
  Result<std::vector<Batch>> unfinished();  // oldest first
  Status put(const Batch& batch);           // REQUIRES: add() made it
  // Forgets a batch with its input and results. REQUIRES: it has ended.
  Status erase(const Batch& batch);

  // The answer of a line, as JSON. A second one of a line replaces the first.
  Status add_result(std::string_view batch, int64_t line, bool failed, std::string_view record);
  Result<std::vector<int64_t>> lines_done(std::string_view batch);  // ascending
  // Writes the results, in the order of their lines, to the files that the batch names, then keeps
  // the batch as it is given and forgets them. After a failure it may be called again.
  Status finish(Batch& batch);

 private:
  Status count(Batch& batch);
  Result<Batch> read(const Statement& row);
  Result<bool> read_results(const Batch& batch, bool failed, int64_t& line, std::string& out);
  Status write_results(const Batch& batch, bool failed, const std::string& file_id);

  FileStore& files_;
  SharedDatabase& shared_;
};

}  // namespace espalier::server
