// A file mapped into memory, read-only. The bytes live as long as the object; pages are read by the
// system as they are touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "base/status.h"

namespace espalier {

// Move-only. Thread-safe to read. A file that another process truncates meanwhile raises SIGBUS.
class MappedFile {
 public:
  // kNotFound when there is no such file, kInvalidArgument when it is no regular file.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Gives the memory of the whole pages inside `part` (of bytes()) back to the system; touching
  // them again reads the file again.
  void release(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file as text; for small files.
Result<std::string> read_text_file(const std::filesystem::path& path);

}  // namespace espalier
