#include "bench/workloads/texts.h"

#include <array>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string_view>

#include "base/rng.h"

namespace espalier::workloads {

namespace {

constexpr std::array<std::string_view, 96> kWords = {
    "time",  "person",  "year",   "way",    "day",    "thing",  "man",   "world",  "life",
    "hand",  "part",    "child",  "eye",    "woman",  "place",  "work",  "week",   "case",
    "point", "company", "number", "group",  "fact",   "house",  "water", "letter", "river",
    "field", "garden",  "bread",  "stone",  "market", "ship",   "road",  "lamp",   "winter",
    "light", "story",   "school", "friend", "is",     "has",    "makes", "takes",  "gives",
    "finds", "sees",    "keeps",  "holds",  "brings", "begins", "moves", "likes",  "writes",
    "opens", "sells",   "buys",   "reads",  "walks",  "turns",  "good",  "new",    "first",
    "last",  "long",    "great",  "little", "own",    "other",  "old",   "right",  "big",
    "high",  "small",   "large",  "young",  "early",  "green",  "quiet", "warm",   "the",
    "a",     "of",      "to",     "in",     "and",    "with",   "for",   "on",     "at",
    "from",  "by",      "about",  "into",   "over",   "after"};

std::string output_of(const std::string& command) {
  struct Close {
    void operator()(std::FILE* file) const { pclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> pipe(popen(command.c_str(), "r"));
  std::string text;
  char buffer[4096];
  while (pipe != nullptr) {
    const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe.get());
    if (n == 0) break;
    text.append(buffer, n);
  }
  return text;
}

}  // namespace

std::string words(uint64_t seed, int count) {
  Rng rng(seed);
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (i > 0) text += i % 12 == 0 ? ". " : " ";
    text += kWords[rng.below(kWords.size())];
  }
  return text;
}

std::vector<Problem> problems(const std::filesystem::path& data, int count) {
  std::vector<Problem> found;
  const std::filesystem::path path = data / "gsm8k_test.jsonl.xz";
  if (!data.empty() && std::filesystem::exists(path)) {
    const std::string text = output_of("xz -dc '" + path.string() + "' 2>/dev/null");
    for (size_t at = 0; at < text.size() && found.size() < static_cast<size_t>(count);) {
      const size_t end = text.find('\n', at);
      boost::json::error_code failed;
      const auto row = boost::json::parse(text.substr(at, end - at), failed);
      if (failed || !row.is_object()) break;
      found.push_back(
          {std::string(row.at("question").as_string()), std::string(row.at("answer").as_string())});
      if (end == std::string::npos) break;
      at = end + 1;
    }
  }
  for (auto i = static_cast<int>(found.size()); i < count; ++i)
    found.push_back({words(9000 + static_cast<uint64_t>(i), 40) + "?",
                     words(9500 + static_cast<uint64_t>(i), 50)});
  return found;
}

}  // namespace espalier::workloads
