// For tests of engines that read pictures: requests with pictures to a tiny LLaVA, asked one after
// the other and all at once.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "engine/testing/test_requests.h"
#include "media/drawn.h"

namespace espalier {

inline constexpr TokenId kPlaceholder = 97;
inline constexpr int32_t kRows = 16;
inline const std::string kSeeing = "../images/llava_clip";

inline void append_number(std::string& out, uint32_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i));
}

// A file without compression: rows from the bottom, blue first, padded to four bytes.
inline std::string bmp_of(const Image& image) {
  const auto width = static_cast<uint32_t>(image.width);
  const auto height = static_cast<uint32_t>(image.height);
  const uint32_t row_bytes = (width * 3 + 3) / 4 * 4;
  std::string out = "BM";
  for (const uint32_t number : {54 + row_bytes * height, 0u, 54u, 40u, width, height})
    append_number(out, number, 4);
  append_number(out, 1, 2);
  append_number(out, 24, 2);
  for (int i = 0; i < 6; ++i) append_number(out, 0, 4);
  for (uint32_t y = height; y-- > 0;) {
    const size_t begin = out.size();
    for (uint32_t x = 0; x < width; ++x)
      for (int c = 2; c >= 0; --c)
        out += static_cast<char>(image.rgb[(size_t{y} * width + x) * 3 + static_cast<size_t>(c)]);
    out.resize(begin + row_bytes);
  }
  return out;
}

inline ImageInput picture(int32_t width, int32_t height) {
  return {.read = [=]() -> Result<std::string> { return bmp_of(test::drawn(width, height)); }};
}

// The golden's prompt, with one placeholder for each of its pictures.
inline GenerateRequest seen_request() {
  return {.input_ids = {90, 61, 66, 86, 97, 56, 75, 80, 97, 23, 8, 30, 29, 84},
          .images = {picture(40, 31), picture(17, 90)},
          .sampling = {.max_new_tokens = 12, .temperature = 0.0f, .ignore_eos = true},
          .return_logprob = true,
          .logprob_start_len = -1};
}

// Greedy, sampled and with penalties; one or two pictures, of which requests share some.
inline std::vector<GenerateRequest> seeing_requests() {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerateRequest r = seen_request();
    r.input_ids.resize(static_cast<size_t>(i % 2 == 0 ? 8 : 14));
    r.images = {picture(20 + i / 4, 31)};
    if (i % 2 == 1) r.images.push_back(picture(30, 9));
    r.input_ids.push_back(i);
    if (i % 4 == 1) r.sampling.temperature = 0.9f;
    if (i % 4 == 2) r.sampling.repetition_penalty = 1.3f, r.sampling.presence_penalty = 0.5f;
    if (i % 3 == 0) r.logprob_start_len = 0;
    r.sampling.sampling_seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(r));
  }
  return requests;
}

// Models whose pictures have as many rows as their sizes demand give no prompt's log-probabilities.
inline std::vector<GenerateRequest> requests_for(const Engine& engine) {
  std::vector<GenerateRequest> requests = seeing_requests();
  if (engine.model_info().images->num_rows == 0)
    for (GenerateRequest& request : requests) request.logprob_start_len = -1;
  return requests;
}

inline std::vector<Answer> answers(Engine& engine) {
  std::vector<Answer> out;
  for (const GenerateRequest& request : requests_for(engine)) {
    auto result = engine.generate(request);
    EXPECT_TRUE(result) << result.error().message();
    if (result) out.push_back(answer_of(*result));
  }
  return out;
}

inline std::vector<Answer> answers_together(Engine& engine) {
  std::vector<std::future<Result<GenerateResult>>> running;
  for (const GenerateRequest& request : requests_for(engine))
    running.push_back(
        std::async(std::launch::async, [&engine, request] { return engine.generate(request); }));
  std::vector<Answer> out;
  for (auto& one : running) {
    auto result = one.get();
    EXPECT_TRUE(result) << result.error().message();
    if (result) out.push_back(answer_of(*result));
  }
  return out;
}

}  // namespace espalier
