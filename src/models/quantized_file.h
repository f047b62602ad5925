// For tests: small Llamas whose matrices are random blocks of GGUF's formats, and how their logits
// compare.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "models/golden.h"
#include "models/model.h"
#include "tensor/block_format.h"

namespace espalier::quantized {

// The storage format of each matrix of a small Llama.
struct Formats {
  std::string name;
  BlockFormat embedding, q_k, v, output, gate_up, down;
};
std::span<const Formats> files();

// The id that GGUF gives the format.
uint32_t id_of(BlockFormat format);
// Random blocks whose numbers have mean 0 and a deviation near 0.06: values are uniform, and so are
// the second level's scales.
std::string random_blocks(Rng& rng, BlockFormat format, int64_t count);
// A GGUF file of a Llama with two layers.
std::string gguf_of(const Formats& formats, uint64_t seed);

using Logits = std::vector<std::vector<float>>;
// Of two prompts that run together in chunks.
Logits run(Model& model, KvType type, int32_t chunk);
// The root mean square of the differences, in deviations of the expected logits.
double difference(const Logits& a, const Logits& expected);

}  // namespace espalier::quantized
