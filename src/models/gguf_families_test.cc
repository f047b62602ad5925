// Every family's golden written as llama.cpp's conversion would write it (its tensors' names, what
// it does to them, its metadata), and read again: the logits are those of transformers. What a GGUF
// does not state (layer types of a tiny Gemma, say) is given as an override of the configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/json_object.h"
#include "checkpoint/temp_folder.h"
#include "models/golden.h"

namespace espalier {
namespace {

constexpr uint32_t kF32 = 0;

struct Array {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Arrays = std::map<std::string, Array>;  // by name

struct Case {
  const char* golden;
  const char* arch;
  std::vector<std::pair<const char*, const char*>> names;  // parts of names, in this order
  std::vector<std::pair<const char*, const char*>> integers,
      reals;  // metadata, config.json's field
  void (*change)(const JsonObject& config, Arrays& arrays, GgufWriter& writer);
  const char* overrides = "";
};

const std::vector<std::pair<const char*, const char*>> kNames = {
    {"model.layers.", "blk."},           {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},       {"lm_head", "output"},
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"},
};
const std::vector<std::pair<const char*, const char*>> kIntegers = {
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"block_count", "num_hidden_layers"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"context_length", "max_position_embeddings"},
    {"attention.sliding_window", "sliding_window"},
};
const std::vector<std::pair<const char*, const char*>> kExperts = {
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

Array& at(Arrays& arrays, const std::string& name) {
  const auto it = arrays.find(name);
  EXPECT_NE(it, arrays.end()) << name;
  return it->second;
}

void each(Arrays& arrays, std::string_view part, const std::function<void(Array&)>& change) {
  for (auto& [name, array] : arrays) {
    if (name.find(part) != std::string::npos) change(array);
  }
}

void transpose(Array& a) {
  const int64_t rows = a.shape.at(0), columns = a.shape.at(1);
  std::vector<float> out;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r)
      out.push_back(a.values[static_cast<size_t>(r * columns + c)]);
  }
  a = {{columns, rows}, std::move(out)};
}

// reshape(heads, 2, dim / 2, columns).swapaxes(1, 2), as conversion does to Llama's q and k.
void interleave(Array& a, int64_t heads) {
  const int64_t dim = a.shape[0] / heads, columns = std::ssize(a.values) / a.shape[0];
  std::vector<float> out;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < dim / 2; ++i) {
      for (int64_t half = 0; half < 2; ++half) {
        const auto row = a.values.begin() + (head * dim + half * (dim / 2) + i) * columns;
        out.insert(out.end(), row, row + columns);
      }
    }
  }
  a.values = std::move(out);
}

int64_t integer(const JsonObject& config, const char* field) {
  return config.integer(field).value();
}

void interleave_heads(const JsonObject& config, Arrays& arrays, GgufWriter&) {
  const int64_t heads = integer(config, "num_attention_heads");
  const int64_t kv_heads = integer(config, "num_key_value_heads");
  each(arrays, "attn_q.", [&](Array& a) { interleave(a, heads); });
  each(arrays, "attn_k.", [&](Array& a) { interleave(a, kv_heads); });
}

void raise_norms(const JsonObject&, Arrays& arrays, GgufWriter&) {
  each(arrays, "norm.weight", [](Array& a) {
    for (float& value : a.values) value += 1;
  });
}

// "blk.0.EXPERTS.3.gate_proj.weight" of all experts become "blk.0.ffn_gate_exps.weight".
void stack_experts(Arrays& arrays, const std::string& experts, int64_t count,
                   const std::map<std::string, std::string>& parts) {
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (const auto& [from, to] : parts) {
      Array stacked;
      for (int64_t i = 0; i < count; ++i) {
        const std::string name = fmt::format("blk.{}.{}.{}.{}.weight", layer, experts, i, from);
        const auto it = arrays.find(name);
        if (it == arrays.end()) break;  // a dense layer
        stacked.shape = it->second.shape;
        stacked.values.insert(stacked.values.end(), it->second.values.begin(),
                              it->second.values.end());
        arrays.erase(it);
      }
      if (stacked.values.empty()) continue;
      stacked.shape.insert(stacked.shape.begin(), count);
      arrays[fmt::format("blk.{}.{}.weight", layer, to)] = std::move(stacked);
    }
  }
}

const std::map<std::string, std::string> kProjections = {
    {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"}};

// kv_b's rows are of each head what makes keys, then what makes values.
void split_latents(const JsonObject& config, Arrays& arrays, GgufWriter& writer) {
  const int64_t heads = integer(config, "num_attention_heads");
  const int64_t nope = integer(config, "qk_nope_head_dim"), value = integer(config, "v_head_dim");
  const int64_t rank = integer(config, "kv_lora_rank"), rope = integer(config, "qk_rope_head_dim");
  for (int64_t layer = 0; layer < 3; ++layer) {
    const Array kv = at(arrays, fmt::format("blk.{}.attn_kv_b.weight", layer));
    arrays.erase(fmt::format("blk.{}.attn_kv_b.weight", layer));
    Array k{{heads, rank, nope}, {}}, v{{heads, value, rank}, {}};
    const auto element = [&](int64_t head, int64_t row, int64_t column) {
      return kv.values[static_cast<size_t>((head * (nope + value) + row) * rank + column)];
    };
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < rank; ++c) {
        for (int64_t r = 0; r < nope; ++r) k.values.push_back(element(h, r, c));
      }
      for (int64_t r = nope; r < nope + value; ++r) {
        for (int64_t c = 0; c < rank; ++c) v.values.push_back(element(h, r, c));
      }
    }
    arrays[fmt::format("blk.{}.attn_k_b.weight", layer)] = std::move(k);
    arrays[fmt::format("blk.{}.attn_v_b.weight", layer)] = std::move(v);
  }
  const auto u32 = [](int64_t n) { return static_cast<uint32_t>(n); };
  writer.integer("deepseek2.attention.key_length", u32(rank + rope))
      .integer("deepseek2.attention.value_length", u32(rank))
      .integer("deepseek2.attention.key_length_mla", u32(nope + rope))
      .integer("deepseek2.attention.value_length_mla", u32(value));
}

const std::vector<std::pair<const char*, const char*>> kDeepseekNames = {
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.gate.", "ffn_gate_inp."},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};
const std::vector<std::pair<const char*, const char*>> kDeepseekIntegers = {
    {"attention.q_lora_rank", "q_lora_rank"},
    {"attention.kv_lora_rank", "kv_lora_rank"},
    {"rope.dimension_count", "qk_rope_head_dim"},
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"expert_count", "n_routed_experts"},
    {"expert_shared_count", "n_shared_experts"},
    {"expert_group_count", "n_group"},
    {"expert_group_used_count", "topk_group"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
};

// gpt-oss: gate and up take turns as outputs, and all matrices lie [expert, in, out].
void part_gpt_oss_experts(const JsonObject& config, Arrays& arrays, GgufWriter& writer) {
  const int64_t experts = integer(config, "num_local_experts");
  const int64_t hidden = integer(config, "hidden_size"), ffn = integer(config, "intermediate_size");
  writer.integer("gpt-oss.expert_count", static_cast<uint32_t>(experts))
      .integer("gpt-oss.expert_feed_forward_length", static_cast<uint32_t>(ffn));
  const auto take = [&](const std::string& name) {
    Array array = at(arrays, name);
    arrays.erase(name);
    return array;
  };
  for (int64_t layer = 0; layer < 3; ++layer) {
    const std::string blk = fmt::format("blk.{}.", layer), mlp = blk + "mlp.experts.";
    const Array both = take(mlp + "gate_up_proj"), both_bias = take(mlp + "gate_up_proj_bias");
    const Array down = take(mlp + "down_proj");
    arrays[blk + "ffn_down_exps.bias"] = take(mlp + "down_proj_bias");
    Array parts[2] = {{{experts, ffn, hidden}, {}}, {{experts, ffn, hidden}, {}}};
    Array biases[2] = {{{experts, ffn}, {}}, {{experts, ffn}, {}}};
    Array turned{{experts, hidden, ffn}, {}};
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t o = 0; o < 2 * ffn; ++o) {
        for (int64_t i = 0; i < hidden; ++i) {
          parts[o % 2].values.push_back(
              both.values[static_cast<size_t>((e * hidden + i) * 2 * ffn + o)]);
        }
        biases[o % 2].values.push_back(both_bias.values[static_cast<size_t>(e * 2 * ffn + o)]);
      }
      for (int64_t o = 0; o < hidden; ++o) {
        for (int64_t i = 0; i < ffn; ++i) {
          turned.values.push_back(down.values[static_cast<size_t>((e * ffn + i) * hidden + o)]);
        }
      }
    }
    for (int k = 0; k < 2; ++k) {
      const char* name = k == 0 ? "ffn_gate_exps" : "ffn_up_exps";
      arrays[blk + name + ".weight"] = std::move(parts[k]);
      arrays[blk + name + ".bias"] = std::move(biases[k]);
    }
    arrays[blk + "ffn_down_exps.weight"] = std::move(turned);
  }
}

void add_vector(const JsonObject& config, const char* field, const char* name, GgufWriter& writer) {
  std::vector<float> values;
  const std::vector<double> factors = config.object("rope_parameters")->numbers(field).value();
  for (const double v : factors) {
    values.push_back(static_cast<float>(v));
  }
  writer.tensor(name, kF32, {std::ssize(values)},
                {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

const std::vector<Case>& cases() {
  static const auto* const kAll = new std::vector<Case>{
      {"mixtral",
       "llama",
       {{"mlp.gate.", "ffn_gate_inp."}, {"block_sparse_moe.gate.", "ffn_gate_inp."}},
       {{"expert_count", "num_local_experts"}},
       {},
       [](const JsonObject& config, Arrays& arrays, GgufWriter& writer) {
         interleave_heads(config, arrays, writer);
         stack_experts(arrays, "block_sparse_moe.experts", 4,
                       {{"w1", "ffn_gate_exps"}, {"w3", "ffn_up_exps"}, {"w2", "ffn_down_exps"}});
       },
       R"({"sliding_window": 14})"},
      {"qwen2_moe",
       "qwen2moe",
       {{"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
        {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
        {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
        {"mlp.gate.", "ffn_gate_inp."}},
       {{"expert_count", "num_experts"},
        {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"}},
       {},
       [](const JsonObject&, Arrays& arrays, GgufWriter&) {
         stack_experts(arrays, "mlp.experts", 6, kProjections);
         each(arrays, "ffn_gate_inp_shexp", [](Array& a) { a.shape = {a.shape[1]}; });
       },
       R"({"mlp_only_layers": [1]})"},
      {"qwen3_moe",
       "qwen3moe",
       {{"mlp.gate.", "ffn_gate_inp."}},
       {{"expert_count", "num_local_experts"}},
       {},
       [](const JsonObject&, Arrays& arrays, GgufWriter&) {
         stack_experts(arrays, "mlp.experts", 8, kProjections);
       }},
      {"gemma", "gemma", {{"post_attention_layernorm", "ffn_norm"}}, {}, {}, raise_norms},
      {"gemma2",
       "gemma2",
       {{"post_attention_layernorm", "post_attention_norm"},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"}},
       {},
       {{"attn_logit_softcapping", "attn_logit_softcapping"},
        {"final_logit_softcapping", "final_logit_softcapping"}},
       raise_norms,
       R"({"query_pre_attn_scalar": 20})"},
      {"gemma3",
       "gemma3",
       {{"post_attention_layernorm", "post_attention_norm"},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"}},
       {},
       {},
       [](const JsonObject& config, Arrays& arrays, GgufWriter& writer) {
         raise_norms(config, arrays, writer);
         writer.real("gemma3.rope.freq_base", 20000).real("gemma3.rope.freq_base_swa", 500);
         writer.string("gemma3.rope.scaling.type", "linear").real("gemma3.rope.scaling.factor", 4);
       },
       R"({"query_pre_attn_scalar": 20,
           "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})"},
      {"phi3_longrope",
       "phi3",
       {{"self_attn.qkv_proj", "attn_qkv"}, {"mlp.gate_up_proj", "ffn_up"}},
       {{"rope.scaling.original_context_length", "original_max_position_embeddings"}},
       {},
       [](const JsonObject& config, Arrays&, GgufWriter& writer) {
         add_vector(config, "long_factor", "rope_factors_long.weight", writer);
         add_vector(config, "short_factor", "rope_factors_short.weight", writer);
         writer.integer("phi3.rope.dimension_count", 12)
             .real("phi3.rope.scaling.attn_factor", 1.19f);
       }},
      {"olmo2",
       "olmo2",
       {{"post_attention_layernorm", "post_attention_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"}},
       {},
       {},
       nullptr},
      {"granite",
       "granite",
       {},
       {},
       {{"embedding_scale", "embedding_multiplier"},
        {"residual_scale", "residual_multiplier"},
        {"attention.scale", "attention_multiplier"},
        {"logit_scale", "logits_scaling"}},
       interleave_heads},
      {"smollm3", "smollm3", {}, {}, {}, interleave_heads, R"({"no_rope_layers": [1, 0, 1]})"},
      {"gpt2",
       "gpt2",
       {{"transformer.h.", "blk."},
        {"transformer.wte", "token_embd"},
        {"transformer.wpe", "position_embd"},
        {"transformer.ln_f", "output_norm"},
        {"ln_1", "attn_norm"},
        {"ln_2", "ffn_norm"},
        {"attn.c_attn", "attn_qkv"},
        {"attn.c_proj", "attn_output"},
        {"mlp.c_fc", "ffn_up"},
        {"mlp.c_proj", "ffn_down"}},
       {{"embedding_length", "n_embd"},
        {"block_count", "n_layer"},
        {"attention.head_count", "n_head"},
        {"context_length", "n_positions"}},
       {{"attention.layer_norm_epsilon", "layer_norm_epsilon"}},
       [](const JsonObject& config, Arrays& arrays, GgufWriter& writer) {
         for (const char* part :
              {"attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"}) {
           each(arrays, part, transpose);
         }
         arrays["output.weight"] = at(arrays, "token_embd.weight");  // conversion repeats it
         writer.integer("gpt2.feed_forward_length",
                        static_cast<uint32_t>(4 * integer(config, "n_embd")));
       }},
      {"gpt_oss",
       "gpt-oss",
       {{"self_attn.sinks", "attn_sinks.weight"},
        {"post_attention_layernorm", "post_attention_norm"},
        {"mlp.router", "ffn_gate_inp"}},
       {},
       {},
       part_gpt_oss_experts},
      {"deepseek_v2",
       "deepseek2",
       kDeepseekNames,
       kDeepseekIntegers,
       {{"expert_weights_scale", "routed_scaling_factor"}},
       [](const JsonObject& config, Arrays& arrays, GgufWriter& writer) {
         stack_experts(arrays, "mlp.experts", 6, kProjections);
         split_latents(config, arrays, writer);
         writer.integer("deepseek2.expert_gating_func", 1);
       }},
      {"deepseek_v3",
       "deepseek2",
       kDeepseekNames,
       kDeepseekIntegers,
       {{"expert_weights_scale", "routed_scaling_factor"}},
       [](const JsonObject& config, Arrays& arrays, GgufWriter& writer) {
         stack_experts(arrays, "mlp.experts", 6, kProjections);
         split_latents(config, arrays, writer);
         writer.integer("deepseek2.expert_gating_func", 2)
             .boolean("deepseek2.expert_weights_norm", true)
             .real("deepseek2.rope.scaling.yarn_log_multiplier", 0.06f);
       },
       R"({"rope_scaling": {"mscale": 0.8}})"},
  };
  return *kAll;
}

void add_rope(const JsonObject& config, const std::string& arch, GgufWriter& writer) {
  const auto parameters = config.object("rope_parameters");
  if (!parameters || !parameters->has("rope_theta")) return;
  writer.real(arch + ".rope.freq_base",
              static_cast<float>(parameters->number("rope_theta").value()));
  const std::string type = parameters->string("rope_type").value();
  if (type != "yarn") return;
  writer.string(arch + ".rope.scaling.type", type)
      .real(arch + ".rope.scaling.factor", static_cast<float>(parameters->number("factor").value()))
      .integer(arch + ".rope.scaling.original_context_length",
               static_cast<uint32_t>(integer(*parameters, "original_max_position_embeddings")));
}

std::string gguf_of(const Case& c, const std::filesystem::path& folder) {
  const JsonObject config = JsonObject::read(folder / "config.json").value();
  const std::string arch = c.arch;
  GgufWriter writer;
  writer.string("general.architecture", arch);
  const bool is_deepseek = arch == "deepseek2";
  for (const auto* fields : {&kIntegers, &kExperts, &c.integers}) {
    for (const auto& [key, field] : *fields) {
      const bool own = fields == &c.integers;
      if (is_deepseek && !own && (fields == &kExperts || std::string(field) == "head_dim"))
        continue;
      if (const auto value = config.integer(field)) {
        writer.integer(arch + "." + key, static_cast<uint32_t>(*value));
      }
    }
  }
  for (const auto& [key, field] : c.reals) {
    writer.real(arch + "." + key, static_cast<float>(config.number(field).value()));
  }
  if (config.has("rms_norm_eps")) {
    writer.real(arch + ".attention.layer_norm_rms_epsilon",
                static_cast<float>(config.number("rms_norm_eps").value()));
  }
  add_rope(config, arch, writer);
  Arrays arrays;
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    std::string name = tensor.name;
    for (const auto* names : {&c.names, &kNames}) {
      for (const auto& [from, to] : *names) name = replaced(std::move(name), from, to);
    }
    name = replaced(std::move(name), "post_attention_layernorm", "ffn_norm");
    Array& array = arrays[name];
    array.shape = tensor.shape;
    array.values.resize(static_cast<size_t>(tensor.num_elements()));
    copy_as_float(tensor, 0, array.values);
  }
  if (c.change != nullptr) c.change(config, arrays, writer);
  for (const auto& [name, array] : arrays) {
    writer.tensor(
        name, kF32, array.shape,
        {reinterpret_cast<const char*>(array.values.data()), array.values.size() * sizeof(float)});
  }
  return writer.bytes();
}

class GgufFamilyGolden : public testing::TestWithParam<size_t> {};

TEST_P(GgufFamilyGolden, GivesTheReferencesLogits) {
  const Case& c = cases()[GetParam()];
  const golden::Golden golden = golden::read(c.golden);
  TempFolder folder;
  const auto path = folder.write("model.gguf", gguf_of(c, golden.folder));
  WorkPool pool(2);
  auto model = load_model(
      {.path = path, .dtype = "float32", .config_overrides = c.overrides, .pool = &pool});
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_EQ((*model)->info().architecture, golden.spec.architecture);
  const float error = golden::max_error(**model, golden, KvType::kFloat32);
  RecordProperty("error", std::to_string(error));
  EXPECT_LT(error, 1e-4f);
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamilyGolden, testing::Range(size_t{0}, cases().size()),
                         [](const auto& tested) {
                           return std::string(cases()[tested.param].golden);
                         });

}  // namespace
}  // namespace espalier
