// Files that clients upload in parts: /v1/uploads. The parts lie in a folder beside the files, all
// else is in the files' database. What a call has answered survives the process and its restart.
//
// Thread-safe. Calls wait for the disk: not for I/O threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/batches/file_store.h"

namespace espalier::server {

struct Upload {
  std::string id;     // "upload_" and 32 hexadecimal digits
  std::string owner;  // the tenant whose key made it, and whose the file is; empty: no tenant
  std::string filename, purpose;
  int64_t bytes = 0;               // of the whole file
  int64_t file_expires_after = 0;  // seconds from its completion on; 0: never
  int64_t created_at = 0;          // Unix seconds
  int64_t expires_at = 0;          // Unix seconds: an upload that is pending then is given up
  std::string status = "pending";  // or completing, completed, cancelled, expired
};

struct UploadPart {
  std::string id;  // "part_" and 32 hexadecimal digits
  int64_t bytes = 0;
  int64_t created_at = 0;  // Unix seconds
};

class UploadStore {
 public:
  // Makes the folder, and takes up again what a stopped process has left. `files` outlives it.
  static Result<std::unique_ptr<UploadStore>> open(const std::filesystem::path& folder,
                                                   FileStore& files);

  // Sets the id, the times and the status. kResourceExhausted where the files have no room for it.
  Result<Upload> create(Upload upload);
  // kInvalidArgument where the upload is not pending. A part counts as a file does until its upload
  // ends.
  Result<UploadPart> add_part(const OwnerFilter& filter, std::string_view id,
                              std::string_view content);

  struct Completed {
    Upload upload;
    FileRecord file;
  };
  // Makes a file of the parts in their order, of the upload's owner. kInvalidArgument where they
  // are not as long as the upload was to be, or where md5 (hexadecimal; empty: unknown) is another;
  // the upload is pending then as before. While it works the parts lie on the disk beside the file.
  Result<Completed> complete(const OwnerFilter& filter, std::string_view id,
                             const std::vector<std::string>& part_ids, std::string_view md5);
  Result<Upload> cancel(const OwnerFilter& filter, std::string_view id);

  // Gives up what has expired; forgets uploads that ended long ago.
  Status delete_expired();

 private:
  UploadStore(std::filesystem::path folder, FileStore& files)
      : folder_(std::move(folder)), files_(files), shared_(files.shared()) {}
  std::filesystem::path path_of(std::string_view part) const { return folder_ / part; }
  Status write_part(std::string_view upload, const UploadPart& part, std::string_view content);
  Result<Upload> pending(const OwnerFilter& filter, std::string_view id);
  Status check_parts(const Upload& upload, const std::vector<std::string>& part_ids);
  Status set_status(std::string_view id, std::string_view from, std::string_view to);
  Status delete_parts(std::string_view id);
  Status delete_unnamed();
  Result<std::vector<std::string>> ids(std::string_view query, std::string_view bound);

  const std::filesystem::path folder_;
  FileStore& files_;
  SharedDatabase& shared_;
};

}  // namespace espalier::server
