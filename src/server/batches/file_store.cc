#include "server/batches/file_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <set>

namespace espalier::server {
namespace {

constexpr const char* kTables[] = {
    "CREATE TABLE IF NOT EXISTS files (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT "
    "NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL, created_at "
    "INTEGER NOT NULL, expires_at INTEGER NOT NULL, owner TEXT NOT NULL DEFAULT '')",  // expires_at:
                                                                                       // 0 for
                                                                                       // never
    "CREATE TABLE IF NOT EXISTS batches (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE "
    "NOT NULL, status TEXT NOT NULL, object TEXT NOT NULL, owner TEXT NOT NULL DEFAULT '')",
    "CREATE TABLE IF NOT EXISTS results (batch TEXT NOT NULL, line INTEGER NOT NULL, failed "
    "INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (batch, line)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS uploads (id TEXT PRIMARY KEY, owner TEXT NOT NULL, filename TEXT "
    "NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL, file_expires_after INTEGER NOT NULL, "
    "created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, status TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS upload_parts (id TEXT PRIMARY KEY, upload TEXT NOT NULL, bytes "
    "INTEGER NOT NULL)",
};

// Tables of earlier versions have no owners: what they hold is no tenant's.
Status add_owners(Database& database) {
  for (const char* table : {"files", "batches"}) {
    Statement find = database.prepare("SELECT 1 FROM pragma_table_info(?) WHERE name = 'owner'");
    if (find.bind(std::string_view(table)).step()) continue;
    ESP_RETURN_IF_ERROR(find.status());
    ESP_RETURN_IF_ERROR(database.run(
        fmt::format("ALTER TABLE {} ADD COLUMN owner TEXT NOT NULL DEFAULT ''", table)));
  }
  return {};
}

constexpr std::string_view kColumns = "id, owner, filename, purpose, bytes, created_at, expires_at";

FileRecord record_of(const Statement& row) {
  FileRecord record{row.text(0),   row.text(1),   row.text(2), row.text(3),
                    row.number(4), row.number(5), {}};
  if (row.number(6) != 0) record.expires_at = row.number(6);
  return record;
}

Status no_such_file(std::string_view id) {
  return error(StatusCode::kNotFound,
               "there is no file '{}': it was deleted, has expired, or "
               "was never uploaded",
               id);
}

Status disk_error(const char* what) {
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    return error(StatusCode::kResourceExhausted, "the disk of --storage-path is full");
  return error(StatusCode::kInternal, "{} in --storage-path failed: {}", what, strerror(errno));
}

Status write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return disk_error("writing");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Status over_the_bound(int64_t max_bytes) {
  return error(StatusCode::kResourceExhausted,
               "the files would take more than {} bytes (--max-storage-bytes): delete some",
               max_bytes);
}

}  // namespace

int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string random_id(std::string_view prefix) {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}{:08x}{:08x}", prefix, device(), device(), device(), device());
}

Status check_filename(std::string_view name) {
  constexpr size_t kNameBytesMax = 1024;
  if (name.size() <= kNameBytesMax) return {};
  return invalid_argument("filename has {} bytes; at most {} are kept", name.size(), kNameBytesMax);
}

Status write_new_file(const std::filesystem::path& path, std::string_view content) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return disk_error("making a file");
  Status written = write_all(fd, content);
  if (written.ok() && ::fdatasync(fd) != 0) written = disk_error("writing");
  ::close(fd);
  if (!written.ok()) ::unlink(path.c_str());
  return written;
}

Result<std::unique_ptr<FileStore>> FileStore::open(const std::filesystem::path& folder,
                                                   int64_t max_bytes) {
  std::error_code problem;
  std::filesystem::create_directories(folder / "files", problem);
  if (problem)
    return fail(
        invalid_argument("{} cannot be made: {}", (folder / "files").string(), problem.message()));
  ESP_ASSIGN_OR_RETURN(Database database, Database::open(folder / "espalier.db"));
  for (const char* table : kTables) ESP_RETURN_IF_ERROR(database.run(table));
  ESP_RETURN_IF_ERROR(add_owners(database));
  std::unique_ptr<FileStore> store(
      new FileStore(folder, max_bytes, std::make_unique<SharedDatabase>(std::move(database))));
  ESP_RETURN_IF_ERROR(store->delete_unnamed());
  return store;
}

Status FileStore::write_content(FileRecord& record, int64_t num_bytes_max,
                                const ContentSource& source) const {
  const std::filesystem::path path = path_of(record.id);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return disk_error("making a file");
  Status written;
  std::string piece;
  for (bool more = true; more && written.ok(); piece.clear()) {
    const Result<bool> read = source(piece);
    more = read.value_or(false);
    record.bytes += std::ssize(piece);
    written = !read                          ? read.error()
              : record.bytes > num_bytes_max ? over_the_bound(max_bytes_)
                                             : write_all(fd, piece);
  }
  if (written.ok() && ::fdatasync(fd) != 0) written = disk_error("writing");
  ::close(fd);
  if (!written.ok()) ::unlink(path.c_str());
  return written;
}

Result<FileRecord> FileStore::add(FileRecord described, const ContentSource& source) {
  std::lock_guard adding(adding_);
  ESP_RETURN_IF_ERROR(check_records());
  if (described.id.empty()) described.id = random_id("file-");
  described.bytes = 0;
  described.created_at = unix_now();
  ESP_RETURN_IF_ERROR(write_content(described, max_bytes_ - num_bytes(), source));
  if (const Status kept = insert(described); !kept.ok()) {
    ::unlink(path_of(described.id).c_str());
    return fail(kept);
  }
  return described;
}

Result<FileRecord> FileStore::add(FileRecord described, std::string_view content) {
  return add(std::move(described), [content](std::string& piece) -> Result<bool> {
    piece = content;
    return false;
  });
}

Status FileStore::with_room(int64_t bytes, const std::function<Status()>& keep) {
  std::lock_guard adding(adding_);
  ESP_RETURN_IF_ERROR(check_records());
  if (bytes > max_bytes_)  // whatever is deleted
    return invalid_argument(
        "the bytes of the file are {}, and all files may have {} "
        "(--max-storage-bytes)",
        bytes, max_bytes_);
  if (bytes > max_bytes_ - num_bytes()) return over_the_bound(max_bytes_);
  return keep();
}

Status FileStore::insert(const FileRecord& r) {
  std::lock_guard lock(shared_->mutex);
  return shared_->database
      .prepare(
          fmt::format("INSERT OR REPLACE INTO files ({}) VALUES (?, ?, ?, ?, ?, ?, ?)", kColumns))
      .bind(r.id)
      .bind(r.owner)
      .bind(r.filename)
      .bind(r.purpose)
      .bind(r.bytes)
      .bind(r.created_at)
      .bind(r.expires_at.value_or(0))
      .run();
}

Result<FileRecord> FileStore::get(std::string_view id, const OwnerFilter& filter) {
  std::lock_guard lock(shared_->mutex);
  Statement find = shared_->database.prepare(
      fmt::format("SELECT {} FROM files WHERE id = ? AND (? OR owner = ?)", kColumns));
  if (find.bind(id).bind(int64_t{filter.sees_all}).bind(filter.owner).step()) {
    FileRecord record = record_of(find);
    if (!record.expires_at || *record.expires_at > unix_now()) return record;
  }
  ESP_RETURN_IF_ERROR(find.status());
  return fail(no_such_file(id));
}

Result<ListPage<FileRecord>> FileStore::list(std::string_view purpose, const ListQuery& query,
                                             const OwnerFilter& filter) {
  if (!query.after.empty()) ESP_RETURN_IF_ERROR(status_of(get(query.after, filter)));
  std::lock_guard lock(shared_->mutex);
  Statement rows = shared_->database.prepare(fmt::format(
      "SELECT {} FROM files WHERE (?1 = '' OR purpose = ?1) AND (?2 = '' OR seq {} (SELECT seq "
      "FROM files WHERE id = ?2)) AND (expires_at = 0 OR expires_at > ?3) AND (?4 OR owner = ?5) "
      "AND purpose != 'message_batch' ORDER BY seq {} LIMIT ?6",
      kColumns, query.ascending ? ">" : "<", query.ascending ? "ASC" : "DESC"));
  rows.bind(purpose).bind(query.after).bind(unix_now());
  rows.bind(int64_t{filter.sees_all}).bind(filter.owner).bind(query.limit + 1);
  ListPage<FileRecord> page;
  while (rows.step()) page.records.push_back(record_of(rows));
  ESP_RETURN_IF_ERROR(rows.status());
  page.has_more = std::ssize(page.records) > query.limit;
  if (page.has_more) page.records.pop_back();
  return page;
}

Status FileStore::erase(std::string_view id, const OwnerFilter& filter) {
  ESP_RETURN_IF_ERROR(status_of(get(id, filter)));
  return remove(id);
}

// First the record, so that no record names a content that is gone.
Status FileStore::remove(std::string_view id) {
  {
    std::lock_guard lock(shared_->mutex);
    ESP_RETURN_IF_ERROR(shared_->database.prepare("DELETE FROM files WHERE id = ?").bind(id).run());
  }
  ::unlink(path_of(id).c_str());
  return {};
}

Result<MappedFile> FileStore::content(std::string_view id, const OwnerFilter& filter) {
  ESP_ASSIGN_OR_RETURN(const FileRecord record, get(id, filter));
  return MappedFile::open(path_of(record.id));
}

int64_t FileStore::num_bytes() {
  std::lock_guard lock(shared_->mutex);
  // An upload that is being completed becomes a file, which add() counts.
  Statement sum = shared_->database.prepare(
      "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM files) + (SELECT COALESCE(SUM(p.bytes), 0) FROM "
      "upload_parts p JOIN uploads u ON u.id = p.upload WHERE u.status != 'completing')");
  return sum.step() ? sum.number(0) : 0;
}

// Records take room of the disk beside the contents, so their number is bounded with the bytes.
Status FileStore::check_records() {
  constexpr int64_t kBytesForEach = 4096, kAlways = 10'000;
  const int64_t most = std::max(kAlways, max_bytes_ / kBytesForEach);
  std::lock_guard lock(shared_->mutex);
  Statement count = shared_->database.prepare(
      "SELECT (SELECT COUNT(*) FROM files) + (SELECT COUNT(*) FROM uploads) + (SELECT COUNT(*) "
      "FROM batches)");
  if (!count.step() || count.number(0) < most) return count.status();
  return error(StatusCode::kResourceExhausted,
               "there are {} files, uploads and batches, as many as --max-storage-bytes of {} "
               "allows: delete some",
               most, max_bytes_);
}

Result<std::vector<std::string>> FileStore::expired_ids() {
  std::lock_guard lock(shared_->mutex);
  Statement rows =
      shared_->database.prepare("SELECT id FROM files WHERE expires_at != 0 AND expires_at <= ?");
  rows.bind(unix_now());
  std::vector<std::string> ids;
  while (rows.step()) ids.push_back(rows.text(0));
  ESP_RETURN_IF_ERROR(rows.status());
  return ids;
}

Status FileStore::delete_expired() {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> expired, expired_ids());
  for (const std::string& id : expired) ESP_RETURN_IF_ERROR(remove(id));
  return {};
}

Status FileStore::delete_unnamed() {
  std::set<std::string> named;
  Statement rows = shared_->database.prepare("SELECT id FROM files");
  while (rows.step()) named.insert(rows.text(0));
  ESP_RETURN_IF_ERROR(rows.status());
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "files", problem))
    if (!named.contains(entry.path().filename().string()))
      std::filesystem::remove(entry.path(), problem);
  return {};
}

}  // namespace espalier::server
