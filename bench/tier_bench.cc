// The rate at which pages go to a disk, a Redis server or a bucket of S3 and come back: what a tier
// of an engine does, without one. bench/disk_tier, bench/remote_tier and bench/s3_tier measure what
// the disk and the servers give to other programs beside it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "tiers/disk_format.h"
#include "tiers/disk_page_store.h"
#include "tiers/redis_session.h"
#include "tiers/remote_page_store.h"
#include "tiers/s3_session.h"

namespace espalier {
namespace {

PageName name_of(uint64_t number) {
  PageName name;
  const uint64_t words[] = {mix64(number * 2 + 1), mix64(number * 2 + 2)};
  std::memcpy(name.bytes.data(), words, sizeof(words));
  return name;
}

// Copies pages as a device's pages on the host are written, and compares them.
class Reader final : public PageSink {
 public:
  Reader(size_t num_pages, const std::vector<std::byte>& page) : page_(page), to_(page.size()) {
    is_right_.resize(num_pages);
  }
  void on_page(size_t index, std::span<const std::byte> bytes) override {
    if (bytes.size() != page_.size()) return;
    std::memcpy(to_.data(), bytes.data(), bytes.size());
    is_right_[index] = std::memcmp(to_.data() + 8, page_.data() + 8, 64) == 0;
  }
  void on_done() override {
    is_done_ = true;
    is_done_.notify_all();
  }
  bool wait() {
    is_done_.wait(false);
    return std::ranges::all_of(is_right_, [](bool right) { return right; });
  }

 private:
  const std::vector<std::byte>& page_;
  std::vector<std::byte> to_;
  std::vector<bool> is_right_;
  std::atomic<bool> is_done_ = false;
};

struct Settings {
  std::string kind = "redis";
  int port = 6379;
  std::string folder, endpoint, bucket;
  int64_t page_bytes = 1 << 20;
  int64_t num_pages = 512;
  int rounds = 5;
  int32_t connections = 2;
};

[[noreturn]] void give_up(const std::string& message) {
  fmt::print(stderr, "{}\n", message);
  std::exit(1);
}

std::unique_ptr<PageStore> open_remote(const Settings& settings, const std::string& scope) {
  RedisServer redis;
  redis.port = settings.port;
  S3Server s3;
  s3.endpoint = settings.endpoint;
  s3.bucket = settings.bucket;
  s3.num_connections = settings.connections;
  auto store = RemotePageStore::open(
      {.kind = settings.kind,
       .scope = scope,
       .page_bytes = settings.page_bytes,
       .num_connections = settings.kind == "s3" ? 2 : settings.connections,
       .write_buffer_bytes = (settings.num_pages + 1) * (settings.page_bytes + 64),
       .transfer_timeout = std::chrono::seconds(60)},
      [&]() -> Result<std::unique_ptr<RemoteSession>> {
        if (settings.kind == "redis") return RedisSession::create(redis, digest_of_scope(scope));
        ESP_ASSIGN_OR_RETURN(const S3Server server, s3.resolved());
        return S3Session::create(server, digest_of_scope(scope),
                                 static_cast<size_t>(settings.page_bytes + kSlotHeaderBytes),
                                 static_cast<size_t>(settings.connections) / 2);
      });
  if (!store) give_up(store.error().to_string());
  if (!(*store)->problem().empty()) give_up((*store)->problem());
  return std::move(*store);
}

std::unique_ptr<PageStore> open_store(const Settings& settings, const std::string& scope) {
  if (settings.kind != "file") return open_remote(settings, scope);
  const int64_t slot_bytes = settings.page_bytes + (64 << 10);
  auto store = DiskPageStore::open({.folder = settings.folder,
                                    .scope = scope,
                                    .page_bytes = settings.page_bytes,
                                    .size_bytes = 2 * settings.num_pages * slot_bytes});
  if (!store) give_up(store.error().to_string());
  return std::move(*store);
}

// A store without room in its buffers refuses pages, and has it again when it is flushed.
void put_all(PageStore& store, std::span<const PageName> names,
             const std::vector<std::byte>& page) {
  while (!names.empty()) {
    const size_t taken = store.put(names, [&](size_t, std::span<std::byte> to) {
      std::copy(page.begin(), page.end(), to.begin());
      return true;
    });
    if (taken < names.size()) store.flush();
    names = names.subspan(taken);
  }
  store.flush();
}

void print_rate(const char* what, const Settings& settings, std::vector<double> seconds) {
  std::ranges::sort(seconds);
  const double bytes = static_cast<double>(settings.page_bytes * settings.num_pages);
  fmt::print("{}: {:.2f} GB/s (median of {}; {:.2f} to {:.2f})\n", what,
             bytes / seconds[seconds.size() / 2] * 1e-9, seconds.size(),
             bytes / seconds.back() * 1e-9, bytes / seconds.front() * 1e-9);
}

int run(const Settings& settings) {
  std::vector<std::byte> page(static_cast<size_t>(settings.page_bytes));
  Rng rng(1);
  for (std::byte& byte : page) byte = static_cast<std::byte>(rng());
  std::vector<PageName> names;
  for (int64_t i = 0; i < settings.num_pages; ++i)
    names.push_back(name_of(static_cast<uint64_t>(i)));
  const SteadyClock clock;
  std::vector<double> writes, reads;
  for (int round = 0; round < settings.rounds; ++round) {
    const std::string scope = fmt::format("round {}", round);
    const auto writer = open_store(settings, scope);
    TimePoint start = clock.now();
    put_all(*writer, names, page);
    writes.push_back(to_seconds(clock.now() - start));
    const auto store = open_store(settings, scope);
    const auto reader = std::make_shared<Reader>(names.size(), page);
    start = clock.now();
    store->get(names, reader);
    if (!reader->wait()) {
      fmt::print(stderr, "pages that were read are not those that were written\n");
      return 1;
    }
    reads.push_back(to_seconds(clock.now() - start));
    store->clear();
    store->flush();
  }
  fmt::print("{} pages of {} bytes", settings.num_pages, settings.page_bytes);
  if (settings.kind != "file") fmt::print(", {} connections", settings.connections);
  fmt::print("\n");
  print_rate("pages written", settings, writes);
  print_rate("pages read   ", settings, reads);
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::Settings settings;
  CLI::App app{"The rate of a disk, a Redis server or a bucket of S3 as a tier"};
  app.add_option("--kind", settings.kind, "redis, s3 or file");
  app.add_option("--port", settings.port, "of the Redis server on 127.0.0.1");
  app.add_option("--folder", settings.folder, "of the file tier");
  app.add_option("--endpoint", settings.endpoint, "of the store of S3's objects");
  app.add_option("--bucket", settings.bucket);
  app.add_option("--page-bytes", settings.page_bytes);
  app.add_option("--pages", settings.num_pages);
  app.add_option("--rounds", settings.rounds);
  app.add_option("--connections", settings.connections, "that move pages");
  CLI11_PARSE(app, argc, argv);
  return espalier::run(settings);
}
