// A file of pages, by which one server gives what it has cached to another of the same model.
//
//   header | scope as text | slot | slot | ... | end
//
// A slot is as on disk (disk_format.h, without padding): the page's name, the scope's digest and a
// checksum of both and of the bytes. The end has the number of pages and a digest of all checksums
// in their order, so that a file that is cut, reordered or joined of two is damaged as a whole.
// Numbers are little-endian.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tiers/disk_format.h"

namespace espalier {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using OwnedFile = std::unique_ptr<std::FILE, CloseFile>;

class PageFileWriter {
 public:
  // Writes beside `path` until finish(), which replaces what is there. Only the owner can read the
  // file: keys and values reveal prompts.
  static Result<std::unique_ptr<PageFileWriter>> create(const std::filesystem::path& path,
                                                        std::string_view scope, int64_t page_bytes);
  ~PageFileWriter();  // removes a file that is not finished

  // REQUIRES page_bytes bytes. Failures are those of the disk.
  Status add(const PageName& name, std::span<const std::byte> bytes);
  Status finish();  // the file is on the disk, whole, when it returns

  int64_t num_pages() const { return num_pages_; }
  int64_t num_bytes() const { return num_bytes_; }  // of the file so far

 private:
  PageFileWriter(std::filesystem::path path, const ScopeDigest& scope, int64_t page_bytes);
  Status write(const void* bytes, size_t size);

  const std::filesystem::path path_, partial_;
  const ScopeDigest scope_;
  const int64_t page_bytes_;
  OwnedFile file_;
  std::vector<std::byte> slot_;
  ScopeDigest digest_{};
  int64_t num_pages_ = 0, num_bytes_ = 0;
};

class PageFileReader {
 public:
  // kNotFound without the file; kFailedPrecondition where its pages are of another model, layout or
  // way of computing than `scope` and page_bytes, which the message names; kDataLoss where it is no
  // such file or is damaged.
  static Result<std::unique_ptr<PageFileReader>> open(const std::filesystem::path& path,
                                                      std::string_view scope, int64_t page_bytes);

  struct Page {
    PageName name;
    std::span<const std::byte> bytes;  // until the next call
  };
  // The next page, checked; none behind the last one of a whole file. kDataLoss where the file is
  // damaged or cut.
  Result<std::optional<Page>> next();
  Status rewind();  // to the first page
  int64_t num_bytes() const { return num_bytes_; }  // of the file when it was opened

 private:
  PageFileReader(std::filesystem::path path, const ScopeDigest& scope, int64_t page_bytes);
  Status read(std::span<std::byte> to);
  Status check_header(std::string_view scope);
  Status check_end(std::span<const std::byte> end);
  Status damaged(std::string_view what) const;

  const std::filesystem::path path_;
  const ScopeDigest scope_;
  const int64_t page_bytes_;
  OwnedFile file_;
  long first_page_ = 0;  // where it begins
  int64_t num_bytes_ = 0;
  std::vector<std::byte> slot_;
  ScopeDigest digest_{};
  int64_t num_pages_ = 0;
};

}  // namespace espalier
