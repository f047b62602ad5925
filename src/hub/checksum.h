// The checksum that a hub states for a file as its etag.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace espalier::hub {

// SHA-256 of the content where the etag has 64 hexadecimal digits (files of Git LFS); Git's blob
// id, SHA-1 of "blob SIZE\0" and the content, where it has 40. Other etags state no checksum and
// match every content. Not thread-safe.
class Checksum {
 public:
  Checksum(std::string etag, int64_t size_bytes);
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void add(std::string_view bytes);
  // Ends the sum.
  bool matches();

 private:
  struct Impl;
  std::string etag_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::hub
