// The name of a model on a Hugging Face hub, as --model-path gives it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier::hub {

// "org/name", "org/name:model-Q4_K_M.gguf" or "org/name:Q4_K_M". A value; thread-safe.
struct HubReference {
  std::string repo;               // "org/name"
  std::string revision = "main";  // a branch, a tag or a commit
  std::string file;               // a GGUF file of the repository, or its quantisation; "": none

  // Nothing where the text has another form.
  static std::optional<HubReference> parse(std::string_view text);
};

// Whether `text` is a whole commit id: 40 hexadecimal digits.
bool is_commit(std::string_view text);

}  // namespace espalier::hub
