// Files and batches on a real disk, in folders of their own.
#include "server/batches/file_store.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "server/batches/batch_store.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct FileStoreTest : ::testing::Test {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("espalier_files_{}", ::getpid());
  std::unique_ptr<FileStore> files;

  void SetUp() override {
    std::filesystem::remove_all(folder);
    reopen();
  }
  void TearDown() override {
    files.reset();
    std::filesystem::remove_all(folder);
  }
  void reopen(int64_t max_bytes = 1000) {
    files.reset();
    auto opened = FileStore::open(folder, max_bytes);
    ASSERT_TRUE(opened) << opened.error().message();
    files = std::move(*opened);
  }
  std::string add(std::string name, std::string_view content) {
    auto kept = files->add({.filename = std::move(name), .purpose = "batch"}, content);
    EXPECT_TRUE(kept) << kept.error().message();
    return kept ? kept->id : "";
  }
  std::vector<std::string> names(const ListPage<FileRecord>& page) {
    std::vector<std::string> out;
    for (const FileRecord& record : page.records) out.push_back(record.filename);
    return out;
  }
};

TEST_F(FileStoreTest, KeepsAFileThroughARestartUntilItIsDeleted) {
  const std::string content("a\0b\n", 4);
  const std::string id = add("x.jsonl", content);
  reopen();
  const auto record = files->get(id, OwnerFilter::everyone());
  ASSERT_TRUE(record);
  EXPECT_EQ(record->filename, "x.jsonl");
  EXPECT_EQ(record->bytes, 4);
  const auto mapped = files->content(id, OwnerFilter::everyone());
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(files->erase(id, OwnerFilter::everyone()).ok());
  EXPECT_EQ(mapped->text(), content);  // who reads it goes on
  EXPECT_EQ(files->get(id, OwnerFilter::everyone()).error().code(), StatusCode::kNotFound);
  EXPECT_EQ(files->erase(id, OwnerFilter::everyone()).code(), StatusCode::kNotFound);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "files"));
}

TEST_F(FileStoreTest, ListsPageByPageInBothOrders) {
  for (const char* name : {"a", "b", "c"}) add(name, "x");
  const auto newest = files->list("", {.limit = 2}, OwnerFilter::everyone());
  ASSERT_TRUE(newest);
  EXPECT_THAT(names(*newest), ElementsAre("c", "b"));
  EXPECT_TRUE(newest->has_more);
  const auto rest =
      files->list("", {.after = newest->records[1].id, .limit = 2}, OwnerFilter::everyone());
  EXPECT_THAT(names(*rest), ElementsAre("a"));
  EXPECT_FALSE(rest->has_more);
  EXPECT_THAT(names(*files->list("batch", {.ascending = true}, OwnerFilter::everyone())),
              ElementsAre("a", "b", "c"));
  EXPECT_TRUE(files->list("vision", {}, OwnerFilter::everyone())->records.empty());
  EXPECT_EQ(files->list("", {.after = "file-none"}, OwnerFilter::everyone()).error().code(),
            StatusCode::kNotFound);
}

TEST_F(FileStoreTest, BoundsAllContentsTogether) {
  add("a", std::string(600, 'x'));
  const auto refused = files->add({.filename = "b", .purpose = "batch"}, std::string(500, 'x'));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("1000 bytes"));
  EXPECT_EQ(files->num_bytes(), 600);
  EXPECT_EQ(files->list("", {}, OwnerFilter::everyone())->records.size(), 1u);
}

TEST_F(FileStoreTest, BoundsTheNumberOfRecords) {
  {
    std::lock_guard lock(files->shared().mutex);
    ASSERT_TRUE(files->shared()
                    .database
                    .run("INSERT INTO files (id, filename, purpose, bytes, created_at, expires_at) "
                         "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
                         "9999) SELECT 'file-' || i, 'x', 'batch', 0, 0, 0 FROM n")
                    .ok());
  }
  add("last", "");
  const auto refused = files->add({.filename = "b", .purpose = "batch"}, "");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("10000 files, uploads and batches"));
  EXPECT_EQ(files->with_room(0, [] { return Status(); }).code(), StatusCode::kResourceExhausted);
}

TEST_F(FileStoreTest, NamesAreBounded) {
  EXPECT_TRUE(check_filename(std::string(1024, 'x')).ok());
  EXPECT_THAT(check_filename(std::string(1025, 'x')).message(), HasSubstr("at most 1024"));
}

// A limit on the size of files stands for a full disk: the write fails part of the way.
TEST_F(FileStoreTest, AFullDiskKeepsNothingOfAFile) {
  reopen(1 << 30);
  add("a", "kept");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{256 << 10, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const auto refused = files->add({.filename = "b", .purpose = "batch"}, std::string(1 << 20, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("full"));
  reopen(1 << 30);
  EXPECT_EQ(files->list("", {}, OwnerFilter::everyone())->records.size(), 1u);
}

TEST_F(FileStoreTest, DeletesWhatHasExpiredAndContentsWithoutARecord) {
  const auto gone =
      files->add({.filename = "x", .purpose = "batch", .expires_at = unix_now() - 1}, "content");
  ASSERT_TRUE(gone);
  EXPECT_EQ(files->get(gone->id, OwnerFilter::everyone()).error().code(), StatusCode::kNotFound);
  EXPECT_TRUE(files->list("", {}, OwnerFilter::everyone())->records.empty());
  ASSERT_TRUE(files->delete_expired().ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder / "files"));
  std::ofstream(folder / "files" / "file-of-a-killed-process") << "part of an upload";
  reopen();
  EXPECT_TRUE(std::filesystem::is_empty(folder / "files"));
}

TEST_F(FileStoreTest, AnOwnerFindsItsOwnAlone) {
  const auto add_as = [&](std::string owner) {
    return files->add({.owner = std::move(owner), .filename = "x", .purpose = "batch"}, "content")
        .value()
        .id;
  };
  const std::string a = add_as("a"), b = add_as("b"), nobody = add_as("");
  reopen();
  const OwnerFilter of_a{.owner = "a"};
  EXPECT_EQ(files->get(a, of_a)->owner, "a");
  EXPECT_EQ(files->list("", {}, of_a)->records.size(), 1u);
  EXPECT_EQ(files->list("", {}, {})->records.size(), 1u);
  EXPECT_EQ(files->list("", {}, OwnerFilter::everyone())->records.size(), 3u);
  for (const std::string& id : {b, nobody}) {
    EXPECT_EQ(files->get(id, of_a).error().code(), StatusCode::kNotFound);
    EXPECT_EQ(files->content(id, of_a).error().code(), StatusCode::kNotFound);
    EXPECT_EQ(files->erase(id, of_a).code(), StatusCode::kNotFound);
    EXPECT_FALSE(files->list("", {.after = id}, of_a));
  }
  EXPECT_TRUE(files->erase(b, OwnerFilter::everyone()).ok());
}

// As the versions before owners made it.
TEST_F(FileStoreTest, AnEarlierDatabaseGetsOwners) {
  files.reset();
  {
    auto database = Database::open(folder / "espalier.db");
    for (const char* statement :
         {"DROP TABLE files", "DROP TABLE batches",
          "CREATE TABLE files (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, "
          "filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL, created_at "
          "INTEGER NOT NULL, expires_at INTEGER NOT NULL)",
          "CREATE TABLE batches (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, "
          "status TEXT NOT NULL, object TEXT NOT NULL)",
          "INSERT INTO files (id, filename, purpose, bytes, created_at, expires_at) VALUES "
          "('file-old', 'x', 'batch', 3, 1, 0)"})
      ASSERT_TRUE(database->run(statement).ok()) << statement;
  }
  std::ofstream(folder / "files" / "file-old") << "old";
  for (int i = 0; i < 2; ++i) {
    reopen();
    EXPECT_EQ(files->content("file-old", {})->text(), "old");
    EXPECT_FALSE(files->get("file-old", {.owner = "a"}));
    BatchStore batches(*files);
    const auto added = batches.add({.owner = "a", .status = "validating", .metadata = "null"});
    ASSERT_TRUE(added);
    EXPECT_EQ(batches.get(added->id, {.owner = "a"})->owner, "a");
    EXPECT_FALSE(batches.get(added->id, {}));
    EXPECT_EQ(batches.list({}, {.owner = "a"})->records.size(), static_cast<size_t>(i + 1));
    EXPECT_TRUE(batches.list({}, {})->records.empty());
  }
}

TEST_F(FileStoreTest, OneServerUsesAFolder) {
  const auto second = FileStore::open(folder, 1000);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.error().message(), HasSubstr("another server"));
  EXPECT_FALSE(FileStore::open("/proc/none", 1000));
}

TEST_F(FileStoreTest, BatchesAndTheirResultsSurviveARestart) {
  auto batches = std::make_unique<BatchStore>(*files);
  Batch made{.status = "in_progress", .endpoint = "/v1/completions", .metadata = R"({"k":"v"})"};
  made.num_total = 3;
  const auto added = batches->add(made);
  ASSERT_TRUE(added);
  ASSERT_TRUE(batches->add_result(added->id, 2, false, R"({"c":3})").ok());
  ASSERT_TRUE(batches->add_result(added->id, 0, false, R"({"c":1})").ok());
  ASSERT_TRUE(batches->add_result(added->id, 1, true, R"({"c":2})").ok());
  batches.reset();
  reopen();
  batches = std::make_unique<BatchStore>(*files);
  const auto unfinished = batches->unfinished();
  ASSERT_TRUE(unfinished);
  ASSERT_EQ(unfinished->size(), 1u);
  Batch batch = unfinished->front();
  EXPECT_EQ(batch.num_completed, 2);
  EXPECT_EQ(batch.num_failed, 1);
  EXPECT_EQ(batch.metadata, R"({"k":"v"})");
  EXPECT_THAT(*batches->lines_done(batch.id), ElementsAre(0, 1, 2));
  batch.output_file_id = "file-out";
  batch.error_file_id = "file-err";
  batch.status = "completed";
  ASSERT_TRUE(batches->finish(batch).ok());
  EXPECT_EQ(files->content("file-out", OwnerFilter::everyone())->text(), "{\"c\":1}\n{\"c\":3}\n");
  EXPECT_EQ(files->content("file-err", OwnerFilter::everyone())->text(), "{\"c\":2}\n");
  EXPECT_TRUE(batches->unfinished()->empty());
  EXPECT_EQ(batches->get(batch.id, OwnerFilter::everyone())->num_completed, 2);
  EXPECT_TRUE(batches->lines_done(batch.id)->empty());
}

}  // namespace
}  // namespace espalier::server
