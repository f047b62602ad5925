// An operator's logit processors: a shared library by include/espalier/logit_processor.h.
//
// Thread-safe once open. Hooks keep the library loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/sampling.h"

struct espalier_logit_processor;  // of the C interface

namespace espalier {

class LogitLibrary : public std::enable_shared_from_this<LogitLibrary> {
 public:
  // kInvalidArgument says what is wrong with the file: it cannot be loaded, does not export
  // espalier_logit_processors, is of another ABI, or has a processor without a name or a function.
  static Result<std::shared_ptr<const LogitLibrary>> open(const std::filesystem::path& file);
  ~LogitLibrary();
  LogitLibrary(const LogitLibrary&) = delete;
  LogitLibrary& operator=(const LogitLibrary&) = delete;

  // A state of the processor `name`, for one sample. kInvalidArgument lists the names there are, or
  // has what the processor says of `params`.
  Result<std::shared_ptr<LogitHook>> make_hook(const std::string& name, const std::string& params,
                                               int32_t vocab_size) const;
  std::vector<std::string> names() const;

 private:
  explicit LogitLibrary(void* library) : library_(library) {}
  Status read_processors();

  void* const library_;
  std::vector<const espalier_logit_processor*> processors_;  // the library's
};

}  // namespace espalier
