#include "server/batches/upload_store.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cctype>
#include <memory>
#include <set>

namespace espalier::server {
namespace {

constexpr int64_t kLifetimeSeconds = 3600;      // of an upload that is pending
constexpr int64_t kRememberedSeconds = 86'400;  // of one that has ended
constexpr int64_t kPartsMax = 10'000;           // of an upload

constexpr std::string_view kUploadColumns =
    "id, owner, filename, purpose, bytes, file_expires_after, created_at, expires_at, status";

Upload upload_of(const Statement& row) {
  return {row.text(0),   row.text(1),   row.text(2),   row.text(3), row.number(4),
          row.number(5), row.number(6), row.number(7), row.text(8)};
}

Status no_longer(std::string_view id, std::string_view status) {
  return invalid_argument("the upload '{}' is no longer {}", id, status);
}

// Computes the MD5 of a content that comes in pieces.
class Md5 {
 public:
  Md5() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_.get(), EVP_md5(), nullptr); }
  void add(std::string_view piece) { EVP_DigestUpdate(context_.get(), piece.data(), piece.size()); }
  std::string hexadecimal() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    EVP_DigestFinal_ex(context_.get(), bytes, &length);
    std::string text;
    for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", bytes[i]);
    return text;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Free> context_;
};

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// The parts one after another; fails behind the last one where their MD5 is another than wanted.
class PartsSource {
 public:
  PartsSource(std::vector<std::filesystem::path> parts, std::string md5)
      : parts_(std::move(parts)), wanted_(std::move(md5)) {}

  Result<bool> next(std::string& piece) {
    if (rest_.empty() && next_ < parts_.size()) {
      ESP_ASSIGN_OR_RETURN(MappedFile opened, MappedFile::open(parts_[next_++]));
      part_ = std::make_unique<MappedFile>(std::move(opened));
      rest_ = part_->text();
    }
    piece = rest_.substr(0, kPiece);
    rest_.remove_prefix(piece.size());
    if (!wanted_.empty()) md5_.add(piece);
    if (!rest_.empty() || next_ < parts_.size()) return true;
    if (wanted_.empty()) return false;
    if (const std::string found = md5_.hexadecimal(); found != wanted_)
      return fail(
          invalid_argument("md5 is {}, but that of the parts in this order is {}", wanted_, found));
    return false;
  }

 private:
  static constexpr size_t kPiece = 1 << 20;

  const std::vector<std::filesystem::path> parts_;
  const std::string wanted_;
  Md5 md5_;
  size_t next_ = 0;
  std::unique_ptr<MappedFile> part_;
  std::string_view rest_;  // of part_
};

}  // namespace

Result<std::unique_ptr<UploadStore>> UploadStore::open(const std::filesystem::path& folder,
                                                       FileStore& files) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    return fail(invalid_argument("{} cannot be made: {}", folder.string(), problem.message()));
  std::unique_ptr<UploadStore> store(new UploadStore(folder, files));
  for (const char* statement :
       {"UPDATE uploads SET status = 'pending' WHERE status = 'completing'",
        "DELETE FROM upload_parts WHERE upload NOT IN (SELECT id FROM uploads WHERE status = "
        "'pending')"}) {
    std::lock_guard lock(store->shared_.mutex);
    ESP_RETURN_IF_ERROR(store->shared_.database.run(statement));
  }
  ESP_RETURN_IF_ERROR(store->delete_unnamed());
  return store;
}

Result<Upload> UploadStore::create(Upload upload) {
  upload.id = random_id("upload_");
  upload.created_at = unix_now();
  upload.expires_at = upload.created_at + kLifetimeSeconds;
  upload.status = "pending";
  ESP_RETURN_IF_ERROR(files_.with_room(upload.bytes, [&] {
    std::lock_guard lock(shared_.mutex);
    return shared_.database
        .prepare(fmt::format("INSERT INTO uploads ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                             kUploadColumns))
        .bind(upload.id)
        .bind(upload.owner)
        .bind(upload.filename)
        .bind(upload.purpose)
        .bind(upload.bytes)
        .bind(upload.file_expires_after)
        .bind(upload.created_at)
        .bind(upload.expires_at)
        .bind(upload.status)
        .run();
  }));
  return upload;
}

Result<Upload> UploadStore::pending(const OwnerFilter& filter, std::string_view id) {
  std::lock_guard lock(shared_.mutex);
  Statement find = shared_.database.prepare(
      fmt::format("SELECT {} FROM uploads WHERE id = ? AND (? OR owner = ?)", kUploadColumns));
  if (!find.bind(id).bind(int64_t{filter.sees_all}).bind(filter.owner).step()) {
    ESP_RETURN_IF_ERROR(find.status());
    return fail(error(StatusCode::kNotFound,
                      "there is no upload '{}': it was never made, or ended long ago", id));
  }
  Upload upload = upload_of(find);
  if (upload.status == "pending" && upload.expires_at <= unix_now())
    return fail(invalid_argument("the upload '{}' has expired: make another one", id));
  if (upload.status != "pending")
    return fail(invalid_argument("the upload '{}' is {}: make another one", id, upload.status));
  return upload;
}

Status UploadStore::write_part(std::string_view upload, const UploadPart& part,
                               std::string_view content) {
  ESP_RETURN_IF_ERROR(write_new_file(path_of(part.id), content));
  bool kept = false;
  Status status;
  {
    std::lock_guard lock(shared_.mutex);
    Statement insert = shared_.database.prepare(
        "INSERT INTO upload_parts (id, upload, bytes) SELECT ?, id, ? FROM uploads WHERE id = ? "
        "AND "
        "status = 'pending' RETURNING id");
    kept = insert.bind(part.id).bind(part.bytes).bind(upload).step();
    status = insert.run();
  }
  if (kept && status.ok()) return {};
  ::unlink(path_of(part.id).c_str());
  return status.ok() ? no_longer(upload, "pending") : status;
}

Result<UploadPart> UploadStore::add_part(const OwnerFilter& filter, std::string_view id,
                                         std::string_view content) {
  if (content.empty()) return fail(invalid_argument("data is empty: a part has at least a byte"));
  const UploadPart part{random_id("part_"), std::ssize(content), unix_now()};
  ESP_RETURN_IF_ERROR(files_.with_room(part.bytes, [&]() -> Status {
    ESP_ASSIGN_OR_RETURN(const Upload upload, pending(filter, id));
    ESP_ASSIGN_OR_RETURN(const auto known, ids("SELECT id FROM upload_parts WHERE upload = ?", id));
    if (std::ssize(known) >= kPartsMax)
      return invalid_argument("the upload '{}' has {} parts, which is the most", id, kPartsMax);
    return write_part(upload.id, part, content);
  }));
  return part;
}

// The parts are of the upload, each once, and together as long as it was to be.
Status UploadStore::check_parts(const Upload& upload, const std::vector<std::string>& part_ids) {
  std::lock_guard lock(shared_.mutex);
  std::set<std::string_view> seen;
  int64_t bytes = 0;
  for (const std::string& id : part_ids) {
    if (!seen.insert(id).second) return invalid_argument("part_ids has '{}' twice", id);
    Statement find =
        shared_.database.prepare("SELECT bytes FROM upload_parts WHERE id = ? AND upload = ?");
    const bool found = find.bind(id).bind(upload.id).step();
    ESP_RETURN_IF_ERROR(find.status());
    if (!found) return invalid_argument("part_ids has '{}', which is no part of this upload", id);
    bytes += find.number(0);
  }
  if (bytes == upload.bytes) return {};
  return invalid_argument("the parts have {} bytes, but the upload was made for {}", bytes,
                          upload.bytes);
}

// kInvalidArgument where the status is another than `from` by now.
Status UploadStore::set_status(std::string_view id, std::string_view from, std::string_view to) {
  std::lock_guard lock(shared_.mutex);
  Statement update = shared_.database.prepare(
      "UPDATE uploads SET status = ? WHERE id = ? AND status = ? RETURNING id");
  const bool changed = update.bind(to).bind(id).bind(from).step();
  ESP_RETURN_IF_ERROR(update.run());
  if (changed) return {};
  return no_longer(id, from);
}

Result<UploadStore::Completed> UploadStore::complete(const OwnerFilter& filter, std::string_view id,
                                                     const std::vector<std::string>& part_ids,
                                                     std::string_view md5) {
  ESP_ASSIGN_OR_RETURN(Upload upload, pending(filter, id));
  ESP_RETURN_IF_ERROR(check_parts(upload, part_ids));
  ESP_RETURN_IF_ERROR(set_status(id, "pending", "completing"));
  std::vector<std::filesystem::path> paths;
  for (const std::string& part : part_ids) paths.push_back(path_of(part));
  PartsSource source(std::move(paths), lower_case(md5));
  FileRecord described{
      .owner = upload.owner, .filename = upload.filename, .purpose = upload.purpose};
  if (upload.file_expires_after != 0) described.expires_at = unix_now() + upload.file_expires_after;
  auto made =
      files_.add(std::move(described), [&](std::string& piece) { return source.next(piece); });
  if (!made) {
    ESP_RETURN_IF_ERROR(set_status(id, "completing", "pending"));
    return fail(made.error());
  }
  ESP_RETURN_IF_ERROR(set_status(id, "completing", "completed"));
  ESP_RETURN_IF_ERROR(delete_parts(id));
  upload.status = "completed";
  return Completed{std::move(upload), std::move(*made)};
}

Result<Upload> UploadStore::cancel(const OwnerFilter& filter, std::string_view id) {
  ESP_ASSIGN_OR_RETURN(Upload upload, pending(filter, id));
  ESP_RETURN_IF_ERROR(set_status(id, "pending", "cancelled"));
  ESP_RETURN_IF_ERROR(delete_parts(id));
  upload.status = "cancelled";
  return upload;
}

Result<std::vector<std::string>> UploadStore::ids(std::string_view query, std::string_view bound) {
  std::lock_guard lock(shared_.mutex);
  Statement rows = shared_.database.prepare(query);
  if (!bound.empty()) rows.bind(bound);
  std::vector<std::string> found;
  while (rows.step()) found.push_back(rows.text(0));
  ESP_RETURN_IF_ERROR(rows.status());
  return found;
}

// First the records, so that no record names a content that is gone.
Status UploadStore::delete_parts(std::string_view id) {
  ESP_ASSIGN_OR_RETURN(const auto parts, ids("SELECT id FROM upload_parts WHERE upload = ?", id));
  if (parts.empty()) return {};
  {
    std::lock_guard lock(shared_.mutex);
    ESP_RETURN_IF_ERROR(
        shared_.database.prepare("DELETE FROM upload_parts WHERE upload = ?").bind(id).run());
  }
  for (const std::string& part : parts) ::unlink(path_of(part).c_str());
  return {};
}

Status UploadStore::delete_expired() {
  const std::string now = std::to_string(unix_now());
  ESP_ASSIGN_OR_RETURN(const auto expired,
                       ids("SELECT id FROM uploads WHERE status = 'pending' AND expires_at <= "
                           "CAST(? AS INTEGER)",
                           now));
  for (const std::string& id : expired) {
    if (!set_status(id, "pending", "expired").ok()) continue;  // it is being completed
    ESP_RETURN_IF_ERROR(delete_parts(id));
  }
  std::lock_guard lock(shared_.mutex);
  return shared_.database
      .prepare(
          "DELETE FROM uploads WHERE status NOT IN ('pending', 'completing') AND expires_at < ?")
      .bind(unix_now() - kRememberedSeconds)
      .run();
}

// Parts of a process that was killed before it had recorded them, or after it had forgotten them.
Status UploadStore::delete_unnamed() {
  ESP_ASSIGN_OR_RETURN(const auto known, ids("SELECT id FROM upload_parts", ""));
  const std::set<std::string> named(known.begin(), known.end());
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, problem))
    if (!named.contains(entry.path().filename().string()))
      std::filesystem::remove(entry.path(), problem);
  return {};
}

}  // namespace espalier::server
