// How byte-level vocabularies inside model files cut a text into the words within which merges
// happen: by a name, which stands for the expressions of the models' own tokenizer.json files.
// Source of the names: llama.cpp, llama-vocab.cpp. Thread-safe: the table is constant.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

struct NamedSplit {
  std::vector<std::string_view> names;
  std::vector<const char*> expressions;  // one after the other
  bool whole_words_first = false;        // a word that is a token needs no merges
  bool add_bos = false;                  // where the file does not say

  // What a tokenizer.json says of it.
  boost::json::object pre_tokenizer() const;
};

const std::vector<NamedSplit>& named_splits();

// An unknown name is refused (kUnimplemented) rather than cut by a default: other words give other
// ids without any sign of it.
Result<const NamedSplit*> find_named_split(std::string_view name);

}  // namespace espalier
