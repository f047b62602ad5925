#include "engine/tiers/page_export.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cache/page_name.h"
#include "engine/tiers/kv_tiers.h"
#include "tiers/page_file.h"

namespace espalier {
namespace {

constexpr size_t kExportBatch = 32;  // pages that are read at once

struct HashOfName {
  size_t operator()(const PageName& name) const { return name.prefix64(); }
};

// Keeps copies of the pages of one get() until all have come.
class ExportSink final : public PageSink {
 public:
  explicit ExportSink(size_t count) : pages_(count) {}
  void on_page(size_t index, std::span<const std::byte> bytes) override {
    pages_[index].assign(bytes.begin(), bytes.end());
  }
  void on_done() override {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    done_.notify_all();
  }
  std::vector<std::vector<std::byte>> take() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return is_done_; });
    return std::move(pages_);
  }

 private:
  std::vector<std::vector<std::byte>> pages_;  // empty: absent
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
};

class PageExporter {
 public:
  PageExporter(const KvTiers::FileParts& tiers, PageFileWriter& writer)
      : tiers_(tiers), writer_(writer) {}

  // Pages of another prefix that were written before are not written again.
  Status add(std::string_view cache_namespace, std::span<const TokenId> tokens) {
    const auto page_size = static_cast<size_t>(tiers_.config.page_size);
    PageName name = root_page_name(tiers_.config.name_scope, "", cache_namespace);
    std::vector<PageName> names;
    for (size_t at = 0; at + page_size <= tokens.size(); at += page_size) {
      name = page_name(name, tokens.subspan(at, page_size));
      if (!written_.contains(name)) names.push_back(name);
    }
    for (size_t first = 0; first < names.size(); first += kExportBatch) {
      const auto batch =
          std::span(names).subspan(first, std::min(kExportBatch, names.size() - first));
      ESP_ASSIGN_OR_RETURN(const size_t count, write(batch));
      if (count == batch.size()) continue;
      missing_.insert(names.begin() + static_cast<std::ptrdiff_t>(first + count), names.end());
      break;
    }
    return {};
  }
  int64_t num_missing() const { return std::ssize(missing_); }

 private:
  // How many leading pages were found and written.
  Result<size_t> write(std::span<const PageName> names) {
    size_t count = 0;
    // A store may have the pages behind those that another one has.
    for (size_t before = names.size(); count < names.size() && count != before;) {
      before = count;
      for (PageStore* const store : tiers_.stores) {
        ESP_ASSIGN_OR_RETURN(const size_t found, write_from(*store, names.subspan(count)));
        count += found;
      }
    }
    return count;
  }
  Result<size_t> write_from(PageStore& store, std::span<const PageName> names) {
    const auto sink = std::make_shared<ExportSink>(names.size());  // the store's until it is done
    store.get(names, sink);
    const std::vector<std::vector<std::byte>> pages = sink->take();
    size_t count = 0;
    for (; count < pages.size() && !pages[count].empty(); ++count) {
      ESP_RETURN_IF_ERROR(writer_.add(names[count], pages[count]));
      written_.insert(names[count]);
    }
    return count;
  }

  const KvTiers::FileParts tiers_;
  PageFileWriter& writer_;
  std::unordered_set<PageName, HashOfName> written_, missing_;
};

// Stores pages of a file in one tier.
class PageImporter {
 public:
  explicit PageImporter(PageStore& store)
      : store_(store), num_left_(store.kind() == "host" ? store.stats().num_pages_max : -1) {}

  // False: the tier does not take it. A page of the file's beginning never gives way to one of its
  // end, without which the latter is useless.
  bool put(const PageFileReader::Page& page) {
    if (num_left_ == 0) return false;
    const FillPage fill = [&](size_t, std::span<std::byte> to) {
      std::ranges::copy(page.bytes, to.begin());
      return true;
    };
    bool is_taken = store_.put({&page.name, 1}, fill) == 1;
    if (!is_taken) {  // its buffers are on their way
      store_.flush();
      is_taken = store_.put({&page.name, 1}, fill) == 1;
    }
    if (is_taken && num_left_ > 0) --num_left_;
    return is_taken;
  }

 private:
  PageStore& store_;
  int64_t num_left_;  // for which there is room; -1: the store decides
};

Result<std::unique_ptr<PageFileReader>> open_checked(const KvTiers::FileParts& tiers,
                                                     const std::filesystem::path& file) {
  const int64_t page_bytes = tiers.stores.front()->page_bytes();
  ESP_ASSIGN_OR_RETURN(auto reader,
                       PageFileReader::open(file, tiers.config.storage_scope, page_bytes));
  while (true) {
    ESP_ASSIGN_OR_RETURN(const auto page, reader->next());
    if (!page) break;
  }
  ESP_RETURN_IF_ERROR(reader->rewind());
  return reader;
}

}  // namespace

Result<StorageReport> export_pages(KvTiers& all, const StorageRequest& request) {
  const KvTiers::FileParts tiers = all.file_parts();
  if (tiers.config.policy != TierWritePolicy::kWriteThrough)
    return fail(error(StatusCode::kFailedPrecondition,
                      "pages are exported from the tiers, which have not every page that is "
                      "cached: start with --hicache-write-policy write_through"));
  all.flush_saves();
  for (PageStore* const store : tiers.stores) store->flush();
  ESP_ASSIGN_OR_RETURN(auto writer, PageFileWriter::create(request.file, tiers.config.storage_scope,
                                                           tiers.stores.front()->page_bytes()));
  PageExporter exporter(tiers, *writer);
  Status status;
  for_each_prefix(request.nodes, request.filter,
                  [&](std::string_view cache_namespace, std::span<const TokenId> tokens) {
                    if (status.ok()) status = exporter.add(cache_namespace, tokens);
                  });
  ESP_RETURN_IF_ERROR(status);
  ESP_RETURN_IF_ERROR(writer->finish());
  return StorageReport{.num_pages = writer->num_pages(),
                       .num_tokens = writer->num_pages() * tiers.config.page_size,
                       .num_missing = exporter.num_missing(),
                       .num_bytes = writer->num_bytes()};
}

Result<StorageReport> import_pages(KvTiers& all, const std::filesystem::path& file) {
  const KvTiers::FileParts tiers = all.file_parts();
  ESP_ASSIGN_OR_RETURN(const auto reader, open_checked(tiers, file));
  std::vector<PageImporter> importers;
  for (PageStore* const store : tiers.stores) {
    const auto* const place = dynamic_cast<const AttachedPageStore*>(store);
    if (place == nullptr || place->is_attached()) importers.emplace_back(*store);
  }
  StorageReport report{.num_bytes = reader->num_bytes()};
  while (true) {
    ESP_ASSIGN_OR_RETURN(const auto page, reader->next());
    if (!page) break;
    bool is_taken = false;
    for (PageImporter& importer : importers) is_taken = importer.put(*page) || is_taken;
    ++(is_taken ? report.num_pages : report.num_missing);
  }
  report.num_tokens = report.num_pages * tiers.config.page_size;
  for (PageStore* const store : tiers.stores) store->flush();
  return report;
}

}  // namespace espalier
