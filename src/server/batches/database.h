// SQLite, as much of it as the stores here need. Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace espalier::server {

// A statement with its values: bind from left to right, then step through the rows.
//   Statement find = db.prepare("SELECT object FROM batches WHERE id = ?");
//   find.bind(id);
//   while (find.step()) use(find.text(0));
//   ESP_RETURN_IF_ERROR(find.status());
// Not thread-safe. A failure of any call stays: step() is false from then on.
class Statement {
 public:
  Statement(sqlite3* database, std::string_view sql);

  Statement& bind(std::string_view text);  // copied
  Statement& bind(int64_t number);
  bool step();  // to the next row; false: there is none
  int64_t number(int column) const;
  std::string text(int column) const;
  const Status& status() const { return status_; }
  Status run();  // steps to the end

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  void note(int code);

  sqlite3* const database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int next_ = 0;  // the last value bound
  Status status_;
};

// One file. Not thread-safe. Committed changes survive the process's end at any moment.
// kFailedPrecondition: another process has the file open; kResourceExhausted: the disk is full.
class Database {
 public:
  static Result<Database> open(const std::filesystem::path& file);

  Statement prepare(std::string_view sql) { return {database_.get(), sql}; }
  Status run(std::string_view sql);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  explicit Database(sqlite3* database) : database_(database) {}
  std::unique_ptr<sqlite3, Close> database_;
};

// All or nothing: rolls back when it is destroyed without commit(). Not thread-safe.
class Transaction {
 public:
  explicit Transaction(Database& database)
      : database_(database), begun_(database.run("BEGIN IMMEDIATE")) {}
  ~Transaction();
  const Status& begun() const { return begun_; }
  Status commit();

 private:
  Database& database_;
  Status begun_;
  bool open_ = true;
};

}  // namespace espalier::server
