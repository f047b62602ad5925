// The architectures of GGUF files that are known, one entry each: what their tensors are called in
// Hugging Face's folders, what conversion did to them, and which metadata make config.json's
// fields. Source: llama.cpp's gguf-py/gguf/constants.py, tensor_mapping.py, and conversion.
// Thread-safe: the tables are constant. Errors (kDataLoss) name the metadata key.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/gguf_file.h"

namespace espalier {

// Reads the fields of one architecture: "llama.block_count".
class GgufFields {
 public:
  GgufFields(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(architecture) {}

  std::string key(std::string_view name) const;
  const GgufFile& file() const { return file_; }
  std::optional<int64_t> integer(std::string_view name) const { return file_.integer(key(name)); }
  std::optional<double> number(std::string_view name) const { return file_.number(key(name)); }
  std::optional<bool> boolean(std::string_view name) const { return file_.boolean(key(name)); }
  std::optional<std::string_view> string(std::string_view name) const {
    return file_.string(key(name));
  }
  Result<int64_t> required(std::string_view name) const;

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

// A tensor's name without ".weight" or ".bias". "{}" stands for an expert: the file holds all of
// them in one tensor. A name that ends in "!" is whole: nothing follows it.
struct GgufName {
  std::string_view gguf, hugging_face;
};

struct GgufFamily {
  std::string_view gguf, hugging_face, model_type;
  bool interleaved = false;     // conversion interleaved the two halves of q's and k's heads
  bool norms_plus_one = false;  // and added 1 to what the norms multiply with
  std::span<const GgufName> outer, layer;  // looked at before the names that most families have
  std::string_view layer_prefix = "model.layers.";
  // Fields beyond those that all have.
  Status (*add_fields)(const GgufFields& fields, boost::json::object& config) = nullptr;

  // "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight"; the file's own for a name
  // that is not known, for the loader to refuse.
  std::string name_of(std::string_view name) const;
  // The way back, for names that stand for one tensor each; nothing for a name that is not known.
  std::optional<std::string> gguf_name_of(std::string_view hugging_face_name) const;
};

// By general.architecture, and what the metadata say beside it (Mixtral is a "llama" with experts).
// Null where it is not known.
const GgufFamily* find_gguf_family(const GgufFile& file);

// The family that a folder's config.json names (architectures[0]). Null where it is not known.
const GgufFamily* find_gguf_family(std::string_view hugging_face_architecture);

const GgufTensor* find_gguf_tensor(const GgufFile& file, std::string_view name);
// The elements of a tensor of floats.
Result<std::vector<float>> gguf_floats(const GgufFile& file, const GgufTensor& tensor);

}  // namespace espalier
