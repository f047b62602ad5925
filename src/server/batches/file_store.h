// What clients upload and what batches write, kept on disk: contents are files of a folder, all
// else is in its database. What add() or commit has answered survives the process and its restart.
//
// Thread-safe. Calls wait for the disk: not for I/O threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "server/batches/database.h"

namespace espalier::server {

struct FileRecord {
  std::string id;        // "file-" and 32 hexadecimal digits; add() makes it
  std::string owner;     // the tenant whose key made it; empty: no tenant
  std::string filename;  // as its client named it
  std::string purpose;   // "batch", "batch_output" ...
  int64_t bytes = 0;
  int64_t created_at = 0;             // Unix seconds
  std::optional<int64_t> expires_at;  // Unix seconds; none: it is kept until it is deleted
};

// Whose records a call sees. One that it does not see is not found.
struct OwnerFilter {
  std::string owner;  // a tenant's name; empty: what no tenant has made
  bool sees_all = false;

  static OwnerFilter everyone() { return {.owner = {}, .sees_all = true}; }
};

// Part of a list of records, newest first unless `ascending`.
struct ListQuery {
  std::string after;  // the id of the record before the first; empty: from the begin
  int64_t limit = 20;
  bool ascending = false;
  std::string before = {};  // of batches: the id of the record behind the last; empty: none
};
template <typename Record>
struct ListPage {
  std::vector<Record> records;
  bool has_more = false;
};

// What is wrong with a result whose value does not matter.
template <typename Value>
Status status_of(const Result<Value>& result) {
  return result ? Status() : result.error();
}

// A database that several stores use. Statements run under the mutex.
struct SharedDatabase {
  explicit SharedDatabase(Database opened) : database(std::move(opened)) {}
  std::mutex mutex;
  Database database;
};

class FileStore {
 public:
  // Makes the folder. max_bytes: of all contents together. kFailedPrecondition: another server uses
  // the folder.
  static Result<std::unique_ptr<FileStore>> open(const std::filesystem::path& folder,
                                                 int64_t max_bytes);

  // Appends the next piece of a content; false: that was all.
  using ContentSource = std::function<Result<bool>(std::string& piece)>;
  // Keeps a content under described.id, or under a new id where that is empty; one that is there
  // under this id is replaced. kResourceExhausted where the bound or the disk is full; nothing is
  // kept then.
  Result<FileRecord> add(FileRecord described, const ContentSource& source);
  Result<FileRecord> add(FileRecord described, std::string_view content);
  Result<FileRecord> get(std::string_view id, const OwnerFilter& filter);
  // purpose: empty for every one.
  Result<ListPage<FileRecord>> list(std::string_view purpose, const ListQuery& query,
                                    const OwnerFilter& filter);
  Status erase(std::string_view id, const OwnerFilter& filter);
  // The content stays readable while it is mapped, also once the file is deleted.
  Result<MappedFile> content(std::string_view id, const OwnerFilter& filter);

  Status delete_expired();

  int64_t num_bytes();  // of all contents, and of the parts of uploads that have not ended
  // Calls `keep`, which keeps more bytes and a record, where they are within the bounds; no other
  // content comes meanwhile. kResourceExhausted where they are not.
  Status with_room(int64_t bytes, const std::function<Status()>& keep);
  SharedDatabase& shared() { return *shared_; }

 private:
  FileStore(std::filesystem::path folder, int64_t max_bytes, std::unique_ptr<SharedDatabase> shared)
      : folder_(std::move(folder)), max_bytes_(max_bytes), shared_(std::move(shared)) {}
  std::filesystem::path path_of(std::string_view id) const { return folder_ / "files" / id; }
  Status check_records();
  Status write_content(FileRecord& record, int64_t num_bytes_max,
                       const ContentSource& source) const;
  Status delete_unnamed();  // contents of a process that was killed before it had recorded them
  Status insert(const FileRecord& record);
  Status remove(std::string_view id);
  Result<std::vector<std::string>> expired_ids();

  const std::filesystem::path folder_;
  const int64_t max_bytes_;
  const std::unique_ptr<SharedDatabase> shared_;
  std::mutex adding_;  // one at a time, for the bound
};

// kInvalidArgument where a client's name of a file is too long to be kept.
Status check_filename(std::string_view name);
// A new file of this content, on the disk when it returns; after a failure there is none.
Status write_new_file(const std::filesystem::path& path, std::string_view content);
int64_t unix_now();                              // seconds
std::string random_id(std::string_view prefix);  // and 32 hexadecimal digits

}  // namespace espalier::server
