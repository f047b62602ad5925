// Where a client says that a picture is, as bytes.
//
//   data:image/png;base64,iVBOR...   the bytes themselves (RFC 2397); so are bare base64 digits
//   file:///data/cat.png             a file of the server, below the folder that it was started
//   with http://, https://                refused: the client sends the bytes
//
// A client chooses the text, so a file is opened first and its real path is checked afterwards: no
// symbolic link and no race leads out of the folder. The functions are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"

namespace espalier {

struct MediaSourceLimits {
  int64_t bytes_max = int64_t{32} << 20;  // decoded
  std::filesystem::path local_folder;     // of file://; empty: there are no local files
};

// kInvalidArgument for what is no source, too large or malformed; kPermissionDenied for a file that
// is not below the folder, there or not; kUnimplemented for http. Messages name at most the
// beginning of `source`.
Result<std::string> read_media_source(std::string_view source, const MediaSourceLimits& limits);

}  // namespace espalier
