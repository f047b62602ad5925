// The golden models written as GGUF, the way conversion writes them: they load, and give the logits
// that transformers gave.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/json_object.h"
#include "checkpoint/temp_folder.h"
#include "models/golden.h"

namespace espalier {
namespace {

constexpr uint32_t kGgufF32 = 0;

std::string with_replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

std::string gguf_name(std::string name) {
  for (const auto& [from, to] : {std::pair{"model.layers.", "blk."},
                                 {"model.embed_tokens", "token_embd"},
                                 {"model.norm", "output_norm"},
                                 {"lm_head", "output"},
                                 {"input_layernorm", "attn_norm"},
                                 {"post_attention_layernorm", "ffn_norm"},
                                 {"self_attn.q_proj", "attn_q"},
                                 {"self_attn.k_proj", "attn_k"},
                                 {"self_attn.v_proj", "attn_v"},
                                 {"self_attn.o_proj", "attn_output"},
                                 {"self_attn.q_norm", "attn_q_norm"},
                                 {"self_attn.k_norm", "attn_k_norm"},
                                 {"mlp.gate_proj", "ffn_gate"},
                                 {"mlp.up_proj", "ffn_up"},
                                 {"mlp.down_proj", "ffn_down"}}) {
    name = with_replaced(std::move(name), from, to);
  }
  return name;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// reshape(heads, 2, dim / 2, columns).swapaxes(1, 2), as llama.cpp's conversion does to q and k.
std::vector<float> interleaved(const std::vector<float>& values, int64_t heads, int64_t rows) {
  const int64_t dim = rows / heads, columns = static_cast<int64_t>(values.size()) / rows;
  std::vector<float> out;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < dim / 2; ++i) {
      for (int64_t half = 0; half < 2; ++half) {
        const auto row = values.begin() + (head * dim + half * (dim / 2) + i) * columns;
        out.insert(out.end(), row, row + columns);
      }
    }
  }
  return out;
}

double theta_of(const JsonObject& config) {
  const auto parameters = config.object("rope_parameters");
  return (parameters ? *parameters : config).number_or("rope_theta", 10000.0).value();
}

void add_config(const JsonObject& config, const std::string& arch, GgufWriter& writer) {
  const auto integer = [&](const char* key, const char* field) {
    const auto value = config.integer(field);
    if (value) writer.integer(arch + "." + key, static_cast<uint32_t>(*value));
  };
  writer.string("general.architecture", arch);
  integer("embedding_length", "hidden_size");
  integer("feed_forward_length", "intermediate_size");
  integer("block_count", "num_hidden_layers");
  integer("attention.head_count", "num_attention_heads");
  integer("attention.head_count_kv", "num_key_value_heads");
  integer("attention.key_length", "head_dim");
  integer("context_length", "max_position_embeddings");
  writer.real(arch + ".attention.layer_norm_rms_epsilon",
              static_cast<float>(config.number("rms_norm_eps").value()));
  writer.real(arch + ".rope.freq_base", static_cast<float>(theta_of(config)));
}

// llama.cpp's factors for Llama 3's scaling.
std::vector<float> rope_factors(const JsonObject& config, int64_t head_dim) {
  const JsonObject scaling = config.object("rope_scaling").value();
  const double factor = scaling.number("factor").value();
  const double original = scaling.number("original_max_position_embeddings").value();
  const double low = scaling.number("low_freq_factor").value();
  const double high = scaling.number("high_freq_factor").value();
  std::vector<float> factors;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const double theta = theta_of(config);
    const double wavelength =
        2 * std::numbers::pi *
        std::pow(theta, static_cast<double>(i) / static_cast<double>(head_dim));
    double value = 1;
    if (wavelength > original / low) {
      value = factor;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      value = 1 / ((1 - smooth) / factor + smooth);
    }
    factors.push_back(static_cast<float>(value));
  }
  return factors;
}

std::string gguf_of(const std::filesystem::path& folder) {
  const JsonObject config = JsonObject::read(folder / "config.json").value();
  const std::string type = config.string("model_type").value();
  const std::string arch = type == "mistral" ? "llama" : type;
  GgufWriter writer;
  add_config(config, arch, writer);
  const int64_t heads = config.integer("num_attention_heads").value();
  const int64_t kv_heads = config.integer_or("num_key_value_heads", heads).value();
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    copy_as_float(tensor, 0, values);
    if (arch == "llama" && tensor.name.find("q_proj") != std::string::npos) {
      values = interleaved(values, heads, tensor.shape[0]);
    } else if (arch == "llama" && tensor.name.find("k_proj") != std::string::npos) {
      values = interleaved(values, kv_heads, tensor.shape[0]);
    }
    writer.tensor(gguf_name(tensor.name), kGgufF32, tensor.shape, bytes_of(values));
  }
  const char* field = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const auto scaling = config.object(field);
  const std::string kind = scaling ? scaling->string("rope_type").value() : "default";
  if (kind == "llama3") {
    const auto factors = rope_factors(config, config.integer("head_dim").value());
    writer.tensor("rope_freqs.weight", kGgufF32, {static_cast<int64_t>(factors.size())},
                  bytes_of(factors));
  } else if (kind != "default") {
    writer.string(arch + ".rope.scaling.type", kind)
        .real(arch + ".rope.scaling.factor", static_cast<float>(scaling->number("factor").value()));
    if (const auto original = scaling->integer("original_max_position_embeddings")) {
      writer.integer(arch + ".rope.scaling.original_context_length",
                     static_cast<uint32_t>(*original));
    }
  }
  return writer.bytes();
}

class GgufGolden : public testing::TestWithParam<const char*> {};

TEST_P(GgufGolden, GivesTheReferencesLogits) {
  const golden::Golden golden = golden::read(GetParam());
  TempFolder folder;
  const auto path = folder.write("model.gguf", gguf_of(golden.folder));
  WorkPool pool(2);
  auto model = load_model({.path = path, .dtype = "float32", .pool = &pool});
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_LT(golden::max_error(**model, golden, KvType::kFloat32), 1e-4f);
}

INSTANTIATE_TEST_SUITE_P(All, GgufGolden,
                         testing::Values("llama_tied_llama3", "llama_untied_bias", "qwen2_sharded",
                                         "qwen3_head_dim"));

TEST(GgufLoad, AnUnknownArchitectureIsRefusedWithThoseKnown) {
  TempFolder folder;
  GgufWriter writer;
  writer.string("general.architecture", "mamba");
  const auto model = load_model({.path = folder.write("m.gguf", writer.bytes())});
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message().find("'mamba'"), std::string::npos) << model.error().message();
  EXPECT_NE(model.error().message().find("LlamaForCausalLM"), std::string::npos);
}

}  // namespace
}  // namespace espalier
