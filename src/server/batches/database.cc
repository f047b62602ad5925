#include "server/batches/database.h"

#include <sqlite3.h>

namespace espalier::server {
namespace {

Status status_of_code(int code, const char* message) {
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return error(StatusCode::kFailedPrecondition, "another server uses it");
    case SQLITE_FULL:
      return error(StatusCode::kResourceExhausted, "the disk is full");
    case SQLITE_NOMEM:
      return error(StatusCode::kResourceExhausted, "the system gives no more memory");
    default:
      return error(StatusCode::kInternal, "the database of files and batches: {}", message);
  }
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

Statement::Statement(sqlite3* database, std::string_view sql) : database_(database) {
  sqlite3_stmt* made = nullptr;
  note(sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &made, nullptr));
  statement_.reset(made);
}

void Statement::note(int code) {
  if (code == SQLITE_OK || !status_.ok()) return;
  status_ = status_of_code(code, sqlite3_errmsg(database_));
}

Statement& Statement::bind(std::string_view text) {
  if (status_.ok())
    note(sqlite3_bind_text64(statement_.get(), ++next_, text.data(), text.size(), SQLITE_TRANSIENT,
                             SQLITE_UTF8));
  return *this;
}

Statement& Statement::bind(int64_t number) {
  if (status_.ok()) note(sqlite3_bind_int64(statement_.get(), ++next_, number));
  return *this;
}

bool Statement::step() {
  if (!status_.ok()) return false;
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) note(code);
  return false;
}

int64_t Statement::number(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  if (bytes == nullptr) return {};
  return {bytes, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

Status Statement::run() {
  while (step()) {
  }
  return status_;
}

void Database::Close::operator()(sqlite3* database) const { sqlite3_close(database); }

Result<Database> Database::open(const std::filesystem::path& file) {
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(file.c_str(), &opened,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(opened);  // to be closed even after a failure
  if (code != SQLITE_OK)
    return fail(invalid_argument("{} cannot be opened: {}", file.string(), sqlite3_errstr(code)));
  // One process at a time; a journal that is appended to, so that a commit is one write.
  for (const char* setting : {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL",
                              "PRAGMA synchronous = NORMAL", "BEGIN EXCLUSIVE", "COMMIT"}) {
    if (const Status set = database.run(setting); !set.ok())
      return fail(Status(set.code(), file.string() + ": " + set.message()));
  }
  return database;
}

Status Database::run(std::string_view sql) { return prepare(sql).run(); }

Transaction::~Transaction() {
  if (open_ && begun_.ok()) (void)database_.run("ROLLBACK");
}

Status Transaction::commit() {
  ESP_RETURN_IF_ERROR(begun_);
  ESP_RETURN_IF_ERROR(database_.run("COMMIT"));
  open_ = false;
  return {};
}

}  // namespace espalier::server
