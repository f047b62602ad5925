#include "server/batches/batch_store.h"

#include <algorithm>
#include <boost/json.hpp>

namespace espalier::server {
namespace {

namespace json = boost::json;

constexpr const char* kTimes[] = {"created_at",    "in_progress_at", "expires_at",
                                  "finalizing_at", "completed_at",   "failed_at",
                                  "expired_at",    "cancelling_at",  "cancelled_at"};

void write_text_or_null(JsonWriter& w, std::string_view name, const std::string& text) {
  w.key(name);
  text.empty() ? w.null() : w.value(text);
}

std::string text_of(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) return {};
  return {value->get_string().data(), value->get_string().size()};
}

int64_t number_of(const json::value& value) { return value.is_int64() ? value.get_int64() : 0; }

// The inverse of write_batch(): the row holds the object as clients see it, so that no schema of
// the database changes when a member is added. Throws for other text, which write_batch() never
// wrote.
Batch parse_batch(const json::object& o, std::string owner) {
  Batch batch{text_of(o, "id"),
              std::move(owner),
              text_of(o, "status"),
              text_of(o, "endpoint"),
              text_of(o, "input_file_id"),
              text_of(o, "completion_window"),
              json::serialize(o.at("metadata")),
              json::serialize(o.at("errors")),
              text_of(o, "output_file_id"),
              text_of(o, "error_file_id"),
              number_of(o.at("output_expires_after")),
              {},
              0,
              0,
              0};
  for (const char* name : kTimes)
    if (const int64_t at = number_of(o.at(name)); at != 0) batch.times[name] = at;
  const json::object& counts = o.at("request_counts").as_object();
  batch.num_total = number_of(counts.at("total"));
  batch.num_completed = number_of(counts.at("completed"));
  batch.num_failed = number_of(counts.at("failed"));
  return batch;
}

}  // namespace

// Times that have not come are null, since clients' types expect every member.
void write_batch(JsonWriter& w, const Batch& batch) {
  w.begin_object().member("id", batch.id).member("object", "batch");
  w.member("endpoint", batch.endpoint).key("errors").raw(batch.errors);
  w.member("input_file_id", batch.input_file_id);
  w.member("completion_window", batch.completion_window).member("status", batch.status);
  write_text_or_null(w, "output_file_id", batch.output_file_id);
  write_text_or_null(w, "error_file_id", batch.error_file_id);
  for (const char* name : kTimes) {
    const auto at = batch.times.find(name);
    w.key(name);
    at == batch.times.end() ? w.null() : w.value(at->second);
  }
  w.key("request_counts").begin_object().member("total", batch.num_total);
  w.member("completed", batch.num_completed).member("failed", batch.num_failed).end_object();
  w.key("metadata").raw(batch.metadata);
  w.member("output_expires_after", batch.output_expires_after).end_object();
}

namespace {

std::string object_of(const Batch& batch) {
  std::string out;
  JsonWriter w(out);
  write_batch(w, batch);
  return out;
}

}  // namespace

Result<Batch> BatchStore::add(Batch batch) {
  if (batch.id.empty()) batch.id = random_id(kBatchPrefix);
  batch.times["created_at"] = unix_now();
  ESP_RETURN_IF_ERROR(files_.with_room(0, [&] {
    std::lock_guard lock(shared_.mutex);
    return shared_.database
        .prepare("INSERT INTO batches (id, status, object, owner) VALUES (?, ?, ?, ?)")
        .bind(batch.id)
        .bind(batch.status)
        .bind(object_of(batch))
        .bind(batch.owner)
        .run();
  }));
  return batch;
}

// Of (object, owner). REQUIRES: the mutex is taken.
Result<Batch> BatchStore::read(const Statement& row) {
  Batch batch = parse_batch(json::parse(row.text(0)).as_object(), row.text(1));
  if (!batch.ended()) ESP_RETURN_IF_ERROR(count(batch));
  return batch;
}

// Counts of a batch that runs come from its lines, which are stored one by one, so that they are
// right after a crash in between.
Status BatchStore::count(Batch& batch) {
  Statement counts = shared_.database.prepare(
      "SELECT COUNT(*), COALESCE(SUM(failed), 0) FROM results WHERE batch = ?");
  if (counts.bind(batch.id).step()) {
    batch.num_failed = counts.number(1);
    batch.num_completed = counts.number(0) - batch.num_failed;
  }
  return counts.status();
}

Result<Batch> BatchStore::get(std::string_view id, const OwnerFilter& filter) {
  std::lock_guard lock(shared_.mutex);
  Statement find = shared_.database.prepare(
      "SELECT object, owner FROM batches WHERE id = ? AND (? OR owner = ?)");
  if (find.bind(id).bind(int64_t{filter.sees_all}).bind(filter.owner).step()) return read(find);
  ESP_RETURN_IF_ERROR(find.status());
  return fail(error(StatusCode::kNotFound, "there is no batch '{}'", id));
}

// Newest first. One row more than the page has shows whether there are more. With `before`, the
// rows nearest to it are read upwards and then turned round.
Result<ListPage<Batch>> BatchStore::list(const ListQuery& query, const OwnerFilter& filter,
                                         std::string_view prefix) {
  for (const std::string& id : {query.after, query.before})
    if (!id.empty()) ESP_RETURN_IF_ERROR(status_of(get(id, filter)));
  std::lock_guard lock(shared_.mutex);
  Statement rows = shared_.database.prepare(
      fmt::format("SELECT object, owner FROM batches WHERE (?1 = '' OR seq < (SELECT seq FROM "
                  "batches WHERE id = ?1)) AND (?2 OR owner = ?3) AND (?4 = '' OR seq > (SELECT "
                  "seq FROM batches WHERE id = ?4)) AND substr(id, 1, length(?5)) = ?5 "
                  "ORDER BY seq {} LIMIT ?6",
                  query.before.empty() ? "DESC" : "ASC"));
  rows.bind(query.after).bind(int64_t{filter.sees_all}).bind(filter.owner);
  rows.bind(query.before).bind(prefix).bind(query.limit + 1);
  ListPage<Batch> page;
  while (rows.step()) {
    ESP_ASSIGN_OR_RETURN(Batch batch, read(rows));
    page.records.push_back(std::move(batch));
  }
  ESP_RETURN_IF_ERROR(rows.status());
  page.has_more = std::ssize(page.records) > query.limit;
  if (page.has_more) page.records.pop_back();
  if (!query.before.empty()) std::ranges::reverse(page.records);
  return page;
}

Result<std::vector<Batch>> BatchStore::unfinished() {
  std::lock_guard lock(shared_.mutex);
  Statement rows = shared_.database.prepare(
      "SELECT object, owner FROM batches WHERE status NOT IN ('failed', 'completed', 'expired', "
      "'cancelled') ORDER BY seq");
  std::vector<Batch> batches;
  while (rows.step()) {
    ESP_ASSIGN_OR_RETURN(Batch batch, read(rows));
    batches.push_back(std::move(batch));
  }
  ESP_RETURN_IF_ERROR(rows.status());
  return batches;
}

Status BatchStore::put(const Batch& batch) {
  std::lock_guard lock(shared_.mutex);
  return shared_.database.prepare("UPDATE batches SET status = ?, object = ? WHERE id = ?")
      .bind(batch.status)
      .bind(object_of(batch))
      .bind(batch.id)
      .run();
}

Status BatchStore::erase(const Batch& batch) {
  for (const std::string& file : {batch.input_file_id, batch.output_file_id, batch.error_file_id}) {
    if (file.empty()) continue;
    const Status erased = files_.erase(file, OwnerFilter::everyone());
    if (!erased.ok() && erased.code() != StatusCode::kNotFound) return erased;
  }
  std::lock_guard lock(shared_.mutex);
  return shared_.database.prepare("DELETE FROM batches WHERE id = ?").bind(batch.id).run();
}

Status BatchStore::add_result(std::string_view batch, int64_t line, bool failed,
                              std::string_view record) {
  std::lock_guard lock(shared_.mutex);
  return shared_.database
      .prepare("INSERT OR REPLACE INTO results (batch, line, failed, record) VALUES (?, ?, ?, ?)")
      .bind(batch)
      .bind(line)
      .bind(int64_t{failed})
      .bind(record)
      .run();
}

Result<std::vector<int64_t>> BatchStore::lines_done(std::string_view batch) {
  std::lock_guard lock(shared_.mutex);
  Statement rows =
      shared_.database.prepare("SELECT line FROM results WHERE batch = ? ORDER BY line");
  rows.bind(batch);
  std::vector<int64_t> lines;
  while (rows.step()) lines.push_back(rows.number(0));
  ESP_RETURN_IF_ERROR(rows.status());
  return lines;
}

// Appends some of the records behind `line`, and moves it; false: there are no more.
Result<bool> BatchStore::read_results(const Batch& batch, bool failed, int64_t& line,
                                      std::string& out) {
  constexpr int64_t kRecords = 64;
  std::lock_guard lock(shared_.mutex);
  Statement rows = shared_.database.prepare(
      "SELECT line, record FROM results WHERE batch = ? AND failed = ? AND line > ? ORDER BY line "
      "LIMIT ?");
  rows.bind(batch.id).bind(int64_t{failed}).bind(line).bind(kRecords);
  int64_t count = 0;
  for (; rows.step(); ++count) {
    line = rows.number(0);
    (out += rows.text(1)) += '\n';
  }
  ESP_RETURN_IF_ERROR(rows.status());
  return count == kRecords;
}

Status BatchStore::write_results(const Batch& batch, bool failed, const std::string& file_id) {
  if (file_id.empty()) return {};
  FileRecord described{
      file_id,
      batch.owner,
      fmt::format("{}_{}.jsonl", batch.id, failed ? "error" : "output"),
      std::string(batch.id.starts_with(kMessageBatchPrefix) ? kMessageBatchPurpose
                                                            : std::string_view("batch_output")),
      0,
      0,
      {}};
  if (batch.output_expires_after != 0)
    described.expires_at = unix_now() + batch.output_expires_after;
  int64_t line = -1;
  return status_of(files_.add(std::move(described), [&](std::string& piece) {
    return read_results(batch, failed, line, piece);
  }));
}

Status BatchStore::finish(Batch& batch) {
  ESP_RETURN_IF_ERROR(write_results(batch, false, batch.output_file_id));
  ESP_RETURN_IF_ERROR(write_results(batch, true, batch.error_file_id));
  std::lock_guard lock(shared_.mutex);
  ESP_RETURN_IF_ERROR(count(batch));
  Transaction transaction(shared_.database);
  ESP_RETURN_IF_ERROR(transaction.begun());
  ESP_RETURN_IF_ERROR(
      shared_.database.prepare("UPDATE batches SET status = ?, object = ? WHERE id = ?")
          .bind(batch.status)
          .bind(object_of(batch))
          .bind(batch.id)
          .run());
  ESP_RETURN_IF_ERROR(
      shared_.database.prepare("DELETE FROM results WHERE batch = ?").bind(batch.id).run());
  return transaction.commit();
}

}  // namespace espalier::server
