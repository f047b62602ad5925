// Which files of a repository a model needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::hub {

struct Selection {
  std::vector<std::string> small;    // configuration, tokenizer, templates, the index of shards
  std::vector<std::string> weights;  // where there is no index of shards
  std::string gguf;                  // the first part of the GGUF that was chosen; "": safetensors

  bool has_index() const;
};

inline constexpr std::string_view kShardIndex = "model.safetensors.index.json";

// `file`: a GGUF by its name, or by its quantisation ("Q4_K_M"); "": safetensors, or the only GGUF.
// kInvalidArgument lists what could be chosen; kNotFound where there is no model that can be read.
Result<Selection> select_files(const std::vector<std::string>& names, std::string_view file);

// The files that an index of shards names, sorted. kDataLoss where it is no index.
Result<std::vector<std::string>> shards_of(std::string_view index_json);

}  // namespace espalier::hub
