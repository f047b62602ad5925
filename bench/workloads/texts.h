// Texts for the workloads: grade-school mathematics where the data is there, else words drawn from
// a seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace espalier::workloads {

// `count` words, the same for the same seed.
std::string words(uint64_t seed, int count);

struct Problem {
  std::string question, answer;
};

// From DATA/gsm8k_test.jsonl.xz (read with xz); words in the same form where that is not there.
std::vector<Problem> problems(const std::filesystem::path& data, int count);

}  // namespace espalier::workloads
