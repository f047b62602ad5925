// Writes a Llama of the 1.24 B shape (or another) with random weights as a GGUF, from a seed.
//
//   cpu_bench_model --format q4_k_m --output FILE.gguf
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tensor/block_format.h"
#include "tensor/dtype.h"

namespace espalier::bench {
namespace {

struct Shape {
  int64_t hidden = 2048, layers = 16, ffn = 8192, heads = 32, kv_heads = 8, vocab = 128256;
};

// GGUF's ids.
enum Type : uint32_t { kF32 = 0, kQ8 = 8, kQ4K = 12, kQ6K = 14, kBf16 = 30 };

struct Tensor {
  std::string name;
  Type type;
  int64_t rows, columns;  // rows 0: a vector
  int64_t elements() const { return std::max<int64_t>(rows, 1) * columns; }
  int64_t bytes() const {
    switch (type) {
      case kF32:
        return elements() * 4;
      case kBf16:
        return elements() * 2;
      case kQ8:
        return elements() / 32 * 34;
      case kQ4K:
        return elements() / 256 * 144;
      case kQ6K:
        return elements() / 256 * 210;
    }
    return 0;
  }
};

// Which matrices get more bits in files named Q4_K_M: the first and last eighth of the layers, and
// every third between.
bool more_bits(int64_t layer, int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

std::vector<Tensor> tensors_of(const Shape& s, const std::string& format) {
  const bool k = format == "q4_k_m";
  const Type most = k ? kQ4K : format == "q8_0" ? kQ8 : kBf16;
  const int64_t head_dim = s.hidden / s.heads;
  std::vector<Tensor> out = {{"token_embd.weight", k ? kQ6K : most, s.vocab, s.hidden},
                             {"output_norm.weight", kF32, 0, s.hidden}};
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string at = "blk." + std::to_string(layer) + ".";
    const Type better = k && more_bits(layer, s.layers) ? kQ6K : most;
    out.push_back({at + "attn_norm.weight", kF32, 0, s.hidden});
    out.push_back({at + "ffn_norm.weight", kF32, 0, s.hidden});
    out.push_back({at + "attn_q.weight", most, s.hidden, s.hidden});
    out.push_back({at + "attn_k.weight", most, s.kv_heads * head_dim, s.hidden});
    out.push_back({at + "attn_v.weight", better, s.kv_heads * head_dim, s.hidden});
    out.push_back({at + "attn_output.weight", most, s.hidden, s.hidden});
    out.push_back({at + "ffn_gate.weight", most, s.ffn, s.hidden});
    out.push_back({at + "ffn_up.weight", most, s.ffn, s.hidden});
    out.push_back({at + "ffn_down.weight", better, s.hidden, s.ffn});
  }
  return out;
}

class Header {
 public:
  template <typename T>
  Header& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Header& text(std::string_view value) {
    put<uint64_t>(value.size());
    bytes_ += value;
    return *this;
  }
  Header& integer(std::string_view key, int64_t value) {
    ++keys_;
    return text(key).put<uint32_t>(4).put(static_cast<uint32_t>(value));
  }
  Header& real(std::string_view key, float value) {
    ++keys_;
    return text(key).put<uint32_t>(6).put(value);
  }
  Header& string(std::string_view key, std::string_view value) {
    ++keys_;
    return text(key).put<uint32_t>(8).text(value);
  }
  Header& array(std::string_view key, uint32_t type, int64_t count) {
    ++keys_;
    return text(key).put<uint32_t>(9).put(type).put(static_cast<uint64_t>(count));
  }
  const std::string& bytes() const { return bytes_; }
  uint64_t keys() const { return keys_; }

 private:
  std::string bytes_;
  uint64_t keys_ = 0;
};

Header metadata(const Shape& s) {
  Header h;
  h.string("general.architecture", "llama").string("general.name", "random");
  h.integer("llama.context_length", 131072).integer("llama.embedding_length", s.hidden);
  h.integer("llama.block_count", s.layers).integer("llama.feed_forward_length", s.ffn);
  h.integer("llama.attention.head_count", s.heads);
  h.integer("llama.attention.head_count_kv", s.kv_heads);
  h.real("llama.attention.layer_norm_rms_epsilon", 1e-5f).real("llama.rope.freq_base", 500000);
  h.integer("llama.rope.dimension_count", s.hidden / s.heads);
  h.integer("llama.vocab_size", s.vocab);
  h.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "llama-bpe");
  h.array("tokenizer.ggml.tokens", 8, s.vocab);
  for (int64_t i = 0; i < s.vocab; ++i) h.text("t" + std::to_string(i));
  h.array("tokenizer.ggml.token_type", 5, s.vocab);
  for (int64_t i = 0; i < s.vocab; ++i) h.put<int32_t>(1);
  h.array("tokenizer.ggml.merges", 8, 1).text("t 1");
  h.integer("tokenizer.ggml.bos_token_id", s.vocab - 2);
  h.integer("tokenizer.ggml.eos_token_id", s.vocab - 1);
  return h;
}

// Numbers with mean 0 and a deviation of about 0.02: scales whose values are drawn uniformly.
void fill(const Tensor& tensor, Rng& rng, std::string& out) {
  out.resize(static_cast<size_t>(tensor.bytes()));
  char* bytes = out.data();
  if (tensor.type == kF32) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const float one = 1;
      std::memcpy(bytes + 4 * i, &one, 4);
    }
    return;
  }
  for (size_t at = 0; at + 8 <= out.size(); at += 8) {
    const uint64_t bits = rng();
    std::memcpy(bytes + at, &bits, 8);
  }
  if (tensor.type == kBf16) {
    for (size_t at = 0; at < out.size(); at += 2) {
      int16_t bits;
      std::memcpy(&bits, bytes + at, 2);
      const BFloat16 value = to_bfloat16(static_cast<float>(bits) * (0.035f / 32768));
      std::memcpy(bytes + at, &value, 2);
    }
    return;
  }
  // float16 of d, then of dmin where there is one.
  const auto [size, place, d, dmin] = tensor.type == kQ8    ? std::tuple{34, 0, 0x0c70, -1}
                                      : tensor.type == kQ4K ? std::tuple{144, 0, 0x06a0, 0x1230}
                                                            : std::tuple{210, 208, 0x0100, -1};
  for (int64_t at = 0; at < tensor.bytes(); at += size) {
    const auto first = static_cast<uint16_t>(d), second = static_cast<uint16_t>(dmin);
    std::memcpy(bytes + at + place, &first, 2);
    if (dmin >= 0) std::memcpy(bytes + at + 2, &second, 2);
  }
}

constexpr int64_t kAlignment = 32;
int64_t aligned(int64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

bool write(const Shape& shape, const std::string& format, uint64_t seed, const std::string& path) {
  const std::vector<Tensor> tensors = tensors_of(shape, format);
  Header head = metadata(shape);
  const uint64_t keys = head.keys();
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    head.text(tensor.name).put<uint32_t>(tensor.rows == 0 ? 1 : 2);
    head.put<uint64_t>(static_cast<uint64_t>(tensor.columns));
    if (tensor.rows > 0) head.put<uint64_t>(static_cast<uint64_t>(tensor.rows));
    head.put<uint32_t>(tensor.type).put<uint64_t>(static_cast<uint64_t>(offset));
    offset = aligned(offset + tensor.bytes());
  }
  Header start;
  start.put<uint32_t>(0x46554747).put<uint32_t>(3);
  start.put<uint64_t>(tensors.size()).put<uint64_t>(keys);
  std::ofstream file(path, std::ios::binary);
  file << start.bytes() << head.bytes();
  const std::string padding(kAlignment, '\0');
  const auto pad = [&](int64_t written) {
    file.write(padding.data(), static_cast<std::streamsize>(aligned(written) - written));
  };
  pad(static_cast<int64_t>(start.bytes().size() + head.bytes().size()));
  Rng rng(seed);
  std::string data;
  for (const Tensor& tensor : tensors) {
    fill(tensor, rng, data);
    file << data;
    pad(tensor.bytes());
  }
  file.close();
  return !file.fail();
}

}  // namespace
}  // namespace espalier::bench

int main(int argc, char** argv) {
  espalier::bench::Shape shape;
  std::string format = "bf16", path;
  uint64_t seed = 1;
  CLI::App app("Writes a Llama with random weights as a GGUF.");
  app.add_option("--format", format, "bf16, q8_0 or q4_k_m")
      ->check(CLI::IsMember({"bf16", "q8_0", "q4_k_m"}))
      ->capture_default_str();
  app.add_option("--output", path, "the file")->required();
  app.add_option("--seed", seed, "of the weights")->capture_default_str();
  app.add_option("--layers", shape.layers, "decoder layers")->check(CLI::Range(1, 1000));
  app.add_option("--vocab", shape.vocab, "tokens")->check(CLI::Range(1000, 1000000));
  CLI11_PARSE(app, argc, argv);
  if (espalier::bench::write(shape, format, seed, path)) return 0;
  std::fprintf(stderr, "cpu_bench_model: %s cannot be written\n", path.c_str());
  return 1;
}
