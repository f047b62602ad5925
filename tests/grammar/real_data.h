// Real schemas and vocabularies for tests: ESPALIER_DATA, else ../shared/data. Where they are
// absent a test skips aloud, or fails with ESPALIER_REQUIRE_DATA=1.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/text_io/open_tokenizer.h"
#include "grammar/masks/token_trie.h"

namespace espalier::real_data {

inline std::filesystem::path folder() {
  const char* stated = std::getenv("ESPALIER_DATA");
  return stated != nullptr ? stated : "../shared/data";
}

// Use as: ESPALIER_NEED(path);
#define ESPALIER_NEED(path)                                                            \
  do {                                                                                 \
    if (!std::filesystem::exists(path)) {                                              \
      const char* required = std::getenv("ESPALIER_REQUIRE_DATA");                     \
      ASSERT_TRUE(required == nullptr || std::string_view(required) != "1") << (path); \
      GTEST_SKIP() << "there is no " << (path) << "; set ESPALIER_DATA";               \
    }                                                                                  \
  } while (false)

inline int64_t count_from_environment(const char* name, int64_t otherwise) {
  const char* stated = std::getenv(name);
  return stated != nullptr ? std::atoll(stated) : otherwise;
}

// ESPALIER_TEST_THREADS, else one for each core.
inline int num_threads() {
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(
      std::max<int64_t>(1, count_from_environment("ESPALIER_TEST_THREADS", cores)));
}

// `work(i)` for i = 0, 1, ... on `threads_wanted` threads until it answers false; calls under way
// are finished. What i does must not depend on the other calls.
inline void in_parallel(const std::function<bool(int64_t)>& work,
                        int threads_wanted = num_threads()) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> done{false};
  const auto run = [&] {
    while (!done) {
      if (!work(next++)) done = true;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < threads_wanted; ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
}

// Says on stderr how far a long run is, at most every two seconds. Thread-safe.
class Progress {
 public:
  Progress(std::string what, int64_t of) : what_(std::move(what)), of_(of) {}
  void at(int64_t count) {
    using namespace std::chrono;
    const int64_t now = duration_cast<milliseconds>(steady_clock::now() - start_).count();
    int64_t last = last_;
    if (now - last < 2000 || !last_.compare_exchange_strong(last, now)) return;
    fmt::print(stderr, "{}: {} of {} after {} s\n", what_, count, of_, now / 1000);
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::string what_;
  const int64_t of_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<int64_t> last_{0};
};

inline std::string read_xz(const std::filesystem::path& path) {
  std::string out;
  FILE* pipe = popen(("xz -dc '" + path.string() + "'").c_str(), "r");
  if (pipe == nullptr) return out;
  std::vector<char> block(1 << 20);
  while (const size_t n = fread(block.data(), 1, block.size(), pipe)) out.append(block.data(), n);
  pclose(pipe);
  return out;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

struct Vocabulary {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const grammar::TokenTrie> trie;  // shared with grammars
};

inline const std::vector<std::string>& vocabulary_names() {
  static const std::vector<std::string> names = {
      "llama3_128k.tiktoken.xz", "qwen_152k.tiktoken.xz",
      "o200k.tiktoken.xz",       "cl100k.tiktoken.xz",
      "tokenizer.model.v1",      "mistral_instruct_tokenizer_240323.model.v3",
      "ggml-vocab-gpt-2.gguf",   "ggml-vocab-llama-spm.gguf"};
  return names;
}

// A file of vocab/, under a name that says what it is.
inline Vocabulary load_vocabulary(const std::string& name) {
  namespace fs = std::filesystem;
  fs::path place = folder() / "vocab" / name;
  const bool packed = name.ends_with(".xz"), versioned = name.find(".model.v") != std::string::npos;
  if (packed || versioned) {
    const fs::path copies =
        fs::path(testing::TempDir()) / ("espalier_vocab_" + std::to_string(getpid()));
    fs::create_directories(copies);
    const fs::path copy =
        copies / (packed ? name.substr(0, name.size() - 3) : name.substr(0, name.size() - 3));
    if (packed) {
      std::ofstream(copy) << read_xz(place);
    } else {
      fs::copy_file(place, copy, fs::copy_options::overwrite_existing);
    }
    place = copy;
  }
  auto tokenizer = open_tokenizer(place);
  if (place.parent_path() != folder() / "vocab") std::filesystem::remove_all(place.parent_path());
  Vocabulary out;
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().to_string();
    return out;
  }
  out.tokenizer = std::move(*tokenizer);
  out.trie = std::make_shared<const grammar::TokenTrie>(out.tokenizer->vocab());
  return out;
}

}  // namespace espalier::real_data
