// For tests of this room: a folder that its object owns and removes in its destructor, and
// safetensors files made by hand. Several threads may write files of different names.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace espalier {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "espalier_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    const std::filesystem::path path = path_ / name;
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<long>(text.size()));
    return path;
  }

 private:
  std::filesystem::path path_;
};

// A file of the format from its header's text and its data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
  bytes += header;
  bytes += data;
  return bytes;
}

}  // namespace espalier
