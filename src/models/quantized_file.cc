#include "models/quantized_file.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "checkpoint/block_types.h"
#include "checkpoint/gguf_writer.h"

namespace espalier::quantized {
namespace {

constexpr int64_t kHidden = 256, kFfn = 512, kVocab = 96, kHeads = 4, kKvHeads = 2;

using enum BlockFormat;

// A float16 of a number between 2^-24 and 1, rounded down.
uint16_t half(float value) {
  const float size = std::abs(value);
  const uint16_t bits =
      size < 0x1p-14f ? static_cast<uint16_t>(size * 0x1p24f)
                      : static_cast<uint16_t>((std::bit_cast<uint32_t>(size) >> 13) - (112 << 10));
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

const Formats kFiles[] = {{"Q8_0", kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0},
                          {"Q4_0", kQ6K, kQ4_0, kQ4_0, kQ4_0, kQ4_0, kQ4_1},
                          {"Q5", kQ6K, kQ5_0, kQ5_1, kQ5_0, kQ5_1, kQ5_0},
                          {"Q4_K_M", kQ6K, kQ4K, kQ6K, kQ4K, kQ4K, kQ6K},
                          {"Q5_K_M", kQ6K, kQ5K, kQ6K, kQ5K, kQ5K, kQ6K},
                          {"Q2_K", kQ6K, kQ2K, kQ3K, kQ3K, kQ2K, kQ3K},
                          {"IQ4", kQ6K, kIq4Xs, kIq4Nl, kIq4Xs, kIq4Nl, kIq4Xs},
                          {"MXFP4", kQ8_0, kMxfp4, kQ8_0, kMxfp4, kMxfp4, kMxfp4}};

std::vector<std::vector<TokenId>> prompts() {
  Rng rng(5);
  std::vector<std::vector<TokenId>> out;
  for (const int length : {21, 3}) {
    std::vector<TokenId>& tokens = out.emplace_back();
    for (int i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>(rng.below(kVocab)));
  }
  return out;
}

}  // namespace

std::span<const Formats> files() { return kFiles; }

uint32_t id_of(BlockFormat format) {
  for (const BlockType& type : block_types()) {
    if (type.name == block_format_info(format).name) return type.id;
  }
  return ~0u;
}

std::string random_blocks(Rng& rng, BlockFormat format, int64_t count) {
  struct Scales {
    float d, minimum;
    size_t at;
  };
  constexpr Scales kScales[] = {{8e-4f, 0, 0},
                                {0.013f, 0, 0},
                                {0.014f, -7.5f * 0.014f, 0},
                                {0.0065f, 0, 0},
                                {0.0065f, -0.1f, 0},
                                {3e-4f, 7.5f * 3e-4f, 0},
                                {1.5e-4f, 15.5f * 1.5e-4f, 0},
                                {4.6e-5f, 0, 208},
                                {0.0043f, 0.0065f, 80},
                                {0.0014f, 0, 108},
                                {8.6e-4f, 0, 0},
                                {4.6e-5f, 0, 0},
                                {0, 0, 0}};
  const BlockFormatInfo& info = block_format_info(format);
  const Scales& scales = kScales[static_cast<size_t>(format)];
  std::string bytes(static_cast<size_t>(count / info.elements) * info.bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.below(256));
  for (size_t at = 0; format == kMxfp4 && at < bytes.size(); at += info.bytes) {
    bytes[at] = 121;  // 2^-7, of values doubled
  }
  for (size_t at = scales.at; format != kMxfp4 && at < bytes.size(); at += info.bytes) {
    const uint16_t d = half(scales.d), minimum = half(scales.minimum);
    std::memcpy(bytes.data() + at, &d, 2);
    if (scales.minimum != 0) std::memcpy(bytes.data() + at + 2, &minimum, 2);
  }
  return bytes;
}

std::string gguf_of(const Formats& formats, uint64_t seed) {
  Rng rng(seed);
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .integer("llama.embedding_length", kHidden)
      .integer("llama.feed_forward_length", kFfn)
      .integer("llama.block_count", 2)
      .integer("llama.attention.head_count", kHeads)
      .integer("llama.attention.head_count_kv", kKvHeads)
      .integer("llama.context_length", 128)
      .real("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .real("llama.rope.freq_base", 10000);
  const auto matrix = [&](const std::string& name, BlockFormat format, int64_t rows, int64_t in) {
    writer.tensor(name + ".weight", id_of(format), {rows, in},
                  random_blocks(rng, format, rows * in));
  };
  const auto norm = [&](const std::string& name) {
    std::vector<float> values(kHidden);
    for (float& value : values) value = static_cast<float>(1 + 0.1 * rng.normal());
    writer.tensor(name + ".weight", 0, {kHidden},
                  {reinterpret_cast<const char*>(values.data()), kHidden * sizeof(float)});
  };
  matrix("token_embd", formats.embedding, kVocab, kHidden);
  norm("output_norm");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "blk." + std::to_string(layer) + ".";
    norm(at + "attn_norm");
    norm(at + "ffn_norm");
    matrix(at + "attn_q", formats.q_k, kHidden, kHidden);
    matrix(at + "attn_k", formats.q_k, kHidden / kHeads * kKvHeads, kHidden);
    matrix(at + "attn_v", formats.v, kHidden / kHeads * kKvHeads, kHidden);
    matrix(at + "attn_output", formats.output, kHidden, kHidden);
    matrix(at + "ffn_gate", formats.gate_up, kFfn, kHidden);
    matrix(at + "ffn_up", formats.gate_up, kFfn, kHidden);
    matrix(at + "ffn_down", formats.down, kHidden, kFfn);
  }
  return writer.bytes();
}

Logits run(Model& model, KvType type, int32_t chunk) {
  return golden::run_all(model, prompts(), type, 16, chunk, true);
}

double difference(const Logits& a, const Logits& expected) {
  double squares = 0, sum = 0, of_differences = 0, count = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    ESP_CHECK(a[i].size() == expected[i].size());
    for (size_t j = 0; j < expected[i].size(); ++j) {
      of_differences += std::pow(a[i][j] - static_cast<double>(expected[i][j]), 2);
      squares += std::pow(expected[i][j], 2);
      sum += expected[i][j];
      ++count;
    }
  }
  return std::sqrt(of_differences / (squares - sum * sum / count));
}

}  // namespace espalier::quantized
