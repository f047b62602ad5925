// Results of long work that are there whole or not at all: they are written beside their place
// under another name, and take the place at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/status.h"

namespace espalier {

// A file or a folder. Move-only; used by one thread. Removes what is not committed.
class StagedOutput {
 public:
  // Where the result will be. kAlreadyExists where something is there and `replace` is false;
  // kNotFound where its folder is not there.
  static Result<StagedOutput> create(const std::filesystem::path& destination, bool replace);

  StagedOutput(StagedOutput&& other) noexcept;
  StagedOutput& operator=(StagedOutput&&) = delete;
  ~StagedOutput();

  // Where it is written: in the destination's folder, so that the last step is a rename.
  const std::filesystem::path& path() const { return path_; }
  // kResourceExhausted where the file system has less space than this.
  Status require_space(int64_t bytes) const;
  // Gives it its place. What was there goes only once this is there.
  Status commit();

 private:
  StagedOutput(std::filesystem::path destination, std::filesystem::path path)
      : destination_(std::move(destination)), path_(std::move(path)) {}

  std::filesystem::path destination_, path_;  // path_: empty once it is committed or moved from
};

// A file that is written from its beginning to its end. Move-only; used by one thread.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::filesystem::path& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // A failure has the system's reason: no space left, for example.
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);
  Status finish();  // brings it to the disk and closes it

 private:
  OutputFile(std::filesystem::path path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}
  Status failure(std::string_view what) const;  // with errno

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace espalier
