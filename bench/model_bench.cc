// Decoding and prefill of one model on this machine, beside the machine's read rate and, if asked,
// beside a peer: each repeat measures the ceiling, then the peer, then us, and ratios are of
// medians.
//
//   models_bench --config bench/configs/llama_1.24b
//   models_bench --config DIR --peer /path/to/llama-bench --peer-model FILE.gguf --json out.json
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/json_object.h"
#include "models/model.h"
#include "read_rate.h"
#include "tensor/buffer.h"
#include "tensor/work_pool.h"

namespace espalier::bench {
namespace {

namespace json = boost::json;

struct Options {
  std::string config = "bench/configs/llama_1.24b";
  std::string load_format = "dummy";
  std::string dtype = "auto";
  std::string kv_dtype = "bfloat16";
  std::vector<int32_t> contexts = {0, 512, 2048};
  std::vector<int32_t> entries = {1};
  int32_t prefill = 512;
  int32_t decode_steps = 32;
  int repeats = 5;
  int threads = 0;
  std::string peer, peer_model, peer_args, json_path;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * 4096;
}

// Keys and values for some entries of equal length, filled with plausible numbers, pages of 16
// tokens.
class Kv {
 public:
  static constexpr int32_t kPage = 16;
  static Result<Kv> create(const ModelInfo& info, KvType type, int32_t entries, int32_t tokens) {
    Kv kv;
    kv.pages_per_entry_ = (tokens + kPage - 1) / kPage;
    KvView& view = kv.view_;
    view.page_size = kPage;
    KvView::Layer layer{.type = type,
                        .num_pages = kv.pages_per_entry_ * entries,
                        .num_kv_heads = info.num_kv_heads,
                        .head_dim = info.head_dim};
    layer.set_dense_strides(kPage);
    const auto bytes = static_cast<size_t>(layer.plane_bytes());
    for (int32_t i = 0; i < 2 * info.num_layers; ++i) {
      ESP_ASSIGN_OR_RETURN(Buffer plane, Buffer::allocate(bytes));
      // Bytes of 0x3c and below are small positive numbers in both types.
      Rng rng(static_cast<uint64_t>(i));
      for (size_t at = 0; at + 8 <= bytes; at += 8) {
        const uint64_t noise = rng() & 0x00ff00ff00ff00ffull;
        const uint64_t word = type == KvType::kFloat32 ? 0x3c0000003c000000ull | noise
                                                       : 0x3c003c003c003c00ull | noise;
        std::memcpy(plane.data() + at, &word, 8);
      }
      kv.planes_.push_back(std::move(plane));
    }
    for (int32_t i = 0; i < info.num_layers; ++i) {
      const auto at = static_cast<size_t>(2 * i);
      layer.k = kv.planes_[at].data();
      layer.v = kv.planes_[at + 1].data();
      view.layers.push_back(layer);
    }
    return kv;
  }
  const KvView& view() const { return view_; }

  // One more step of `count` tokens for `entries` entries that each hold `prefix` tokens.
  ForwardBatch batch(int32_t entries, int32_t prefix, int32_t count, int32_t vocab) const {
    ForwardBatch batch;
    Rng rng(99 + static_cast<uint64_t>(prefix));
    for (int32_t i = 0; i < entries; ++i) {
      BatchEntry entry;
      entry.slot = i;
      entry.num_query_tokens = count;
      entry.prefix_len = prefix;
      entry.query_begin = batch.num_tokens();
      entry.page_begin = static_cast<int32_t>(batch.page_tables.size());
      entry.num_pages = (prefix + count + kPage - 1) / kPage;
      entry.sample = true;
      for (int32_t page = 0; page < entry.num_pages; ++page) {
        batch.page_tables.push_back(i * pages_per_entry_ + page);
      }
      for (int32_t t = 0; t < count; ++t) {
        batch.token_ids.push_back(static_cast<TokenId>(rng.below(static_cast<uint64_t>(vocab))));
        batch.positions.push_back(prefix + t);
      }
      batch.entries.push_back(std::move(entry));
    }
    return batch;
  }

 private:
  KvView view_;
  std::vector<Buffer> planes_;
  int32_t pages_per_entry_ = 0;
};

// One thing that is measured: decoding at a context, or prefill (steps of one entry each).
struct Case {
  std::string name;  // as the peer calls it, where it has the same
  int32_t entries = 1;
  int32_t context = 0;  // tokens before the first step
  int32_t tokens = 1;   // an entry and step: 1 is decoding
  int32_t steps = 1;
  double bytes_per_step = 0;                  // that must be read from memory
  std::vector<double> ours, peers, ceilings;  // tokens a second, a repeat each
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)), pool_(options_.threads) {}

  Status run() {
    ESP_RETURN_IF_ERROR(load());
    ESP_RETURN_IF_ERROR(check_answer());
    make_cases();
    ESP_ASSIGN_OR_RETURN(ReadRate rate, ReadRate::create(pool_, size_t{1} << 30));
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      rates_.push_back(rate.measure());
      std::map<std::string, double> peer;
      if (!options_.peer.empty()) {
        ESP_ASSIGN_OR_RETURN(peer, run_peer());
      }
      for (Case& one : cases_) {
        ESP_ASSIGN_OR_RETURN(const double ours, measure(one));
        one.ours.push_back(ours);
        if (one.bytes_per_step > 0) {
          one.ceilings.push_back(rates_.back() / one.bytes_per_step * one.entries);
        }
        if (peer.contains(one.name)) one.peers.push_back(peer.at(one.name));
      }
      std::fprintf(stderr, "repeat %d of %d done, read rate %.1f GB/s\n", repeat + 1,
                   options_.repeats, rates_.back() * 1e-9);
    }
    report();
    return Status();
  }

 private:
  Status load() {
    const auto start = std::chrono::steady_clock::now();
    const LoadFormat format =
        options_.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
    ESP_ASSIGN_OR_RETURN(model_, load_model({.path = options_.config,
                                             .format = format,
                                             .seed = 1,
                                             .dtype = options_.dtype,
                                             .pool = &pool_}));
    load_seconds_ = seconds_since(start);
    ESP_ASSIGN_OR_RETURN(const JsonObject config, read_model_config(options_.config));
    ESP_ASSIGN_OR_RETURN(const int64_t hidden_size, config.integer("hidden_size"));
    hidden_size_ = static_cast<double>(hidden_size);
    loaded_bytes_ = resident_bytes();
    kv_type_ = options_.kv_dtype == "float32" ? KvType::kFloat32 : KvType::kBFloat16;
    const int32_t entries = *std::max_element(options_.entries.begin(), options_.entries.end());
    return model_->reserve(std::max({options_.prefill, entries, 64}), entries);
  }

  // Checks the answer first: the same 40 tokens as one chunk, in two chunks and one by one must
  // give the same bits, which are finite.
  Status check_answer() {
    constexpr int32_t kTokens = 24;
    ESP_ASSIGN_OR_RETURN(const Kv kv, Kv::create(model_->info(), kv_type_, 1, kTokens));
    const ForwardBatch whole = kv.batch(1, 0, kTokens, model_->info().vocab_size);
    std::vector<float> first;
    for (const int32_t chunk : {kTokens, 17, 1}) {
      std::vector<float> logits;
      for (int32_t done = 0; done < kTokens; done += chunk) {
        const int32_t count = std::min(chunk, kTokens - done);
        ForwardBatch part = kv.batch(1, done, count, model_->info().vocab_size);
        std::copy_n(whole.token_ids.begin() + done, count, part.token_ids.begin());
        const ForwardOutput out = model_->forward(part, part.token_ids, kv.view(), {});
        logits.assign(out.sample_logits.begin(), out.sample_logits.end());
      }
      if (first.empty()) first = logits;
      const bool finite =
          std::all_of(logits.begin(), logits.end(), [](float v) { return std::abs(v) < 1e4f; });
      if (!finite || std::memcmp(first.data(), logits.data(), logits.size() * 4) != 0) {
        return error(StatusCode::kInternal, "in chunks of {} the logits differ", chunk);
      }
    }
    return Status();
  }

  void make_cases() {
    const ModelInfo& info = model_->info();
    const auto weights = static_cast<double>(info.weight_bytes);
    const auto kv_token = static_cast<double>(info.kv_bytes_per_token(kv_type_));
    const int32_t steps = options_.decode_steps;
    for (const int32_t entries : options_.entries) {
      for (const int32_t context : options_.contexts) {
        Case one{.entries = entries, .context = context, .tokens = 1, .steps = steps};
        one.name =
            context == 0 ? fmt::format("tg{}", steps) : fmt::format("tg{}@pp{}", steps, context);
        if (entries > 1) one.name += fmt::format("x{}", entries);
        one.bytes_per_step = weights + entries * kv_token * (context + steps / 2.0);
        cases_.push_back(one);
      }
    }
    Case prefill{.tokens = options_.prefill};
    prefill.name = fmt::format("pp{}", options_.prefill);
    cases_.push_back(prefill);
  }

  // Tokens a second, all entries together.
  Result<double> measure(const Case& one) {
    const int32_t end = one.context + one.tokens * (one.steps + 1);
    ESP_ASSIGN_OR_RETURN(const Kv kv, Kv::create(model_->info(), kv_type_, one.entries, end));
    const int32_t vocab = model_->info().vocab_size;
    // A first step warms scratch and caches; prefill is long enough without.
    if (one.tokens == 1) {
      const ForwardBatch warm = kv.batch(one.entries, one.context, 1, vocab);
      model_->forward(warm, warm.token_ids, kv.view(), {});
    }
    std::vector<ForwardBatch> batches;
    for (int32_t step = 0; step < one.steps; ++step) {
      batches.push_back(kv.batch(one.entries, one.context + step * one.tokens, one.tokens, vocab));
    }
    const auto start = std::chrono::steady_clock::now();
    for (const ForwardBatch& batch : batches) {
      model_->forward(batch, batch.token_ids, kv.view(), {});
    }
    return static_cast<double>(one.entries) * one.tokens * one.steps / seconds_since(start);
  }

  // Tokens a second by test name, from one run of a llama-bench: of three times each, the middle
  // one, since its first prompt also takes its buffers from the system.
  Result<std::map<std::string, double>> run_peer() {
    std::string command = fmt::format("'{}' -m '{}' -t {} -r 3 -o json -p {} -n {}", options_.peer,
                                      options_.peer_model, pool_.num_threads(), options_.prefill,
                                      options_.decode_steps);
    for (const int32_t context : options_.contexts) {
      if (context > 0) command += fmt::format(" -gp {},{}", context, options_.decode_steps);
    }
    command += " " + options_.peer_args + " 2>/dev/null";
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return fail(error(StatusCode::kInternal, "cannot start {}", command));
    std::string text;
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, n);
    const int exit_code = ::pclose(pipe);
    json::error_code failure;
    const json::value parsed = json::parse(text, failure);
    if (exit_code != 0 || failure || !parsed.is_array()) {
      return fail(
          error(StatusCode::kInternal, "the peer failed (exit {}): {}", exit_code, command));
    }
    std::map<std::string, double> rates;
    for (const json::value& test : parsed.get_array()) {
      const json::object* object = test.if_object();
      if (object == nullptr || !object->contains("avg_ts")) continue;
      std::vector<double> samples;
      if (const json::value* all = object->if_contains("samples_ts"); all && all->is_array()) {
        for (const json::value& one : all->get_array()) samples.push_back(one.to_number<double>());
      }
      rates[name_of_peer_test(*object)] =
          samples.empty() ? object->at("avg_ts").to_number<double>() : median(std::move(samples));
    }
    return rates;
  }

  // llama.cpp's own has no "test" field.
  static std::string name_of_peer_test(const json::object& object) {
    if (const json::value* name = object.if_contains("test")) return name->as_string().c_str();
    const auto prompt = object.at("n_prompt").to_number<int64_t>();
    const auto generated = object.at("n_gen").to_number<int64_t>();
    return generated == 0 ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generated);
  }

  // Of the matrix products alone: two operations for each weight and token that meet. Prefill asks
  // for one row of logits, so the head (or, tied, the embedding) counts in decoding only.
  double matrix_gflops(const Case& one, double tokens_per_second) const {
    const ModelInfo& info = model_->info();
    auto weights = static_cast<double>(info.num_parameters);
    if (one.tokens > 1) weights -= static_cast<double>(info.vocab_size) * hidden_size_;
    return 2e-9 * weights * tokens_per_second;
  }

  void report() const {
    const ModelInfo& info = model_->info();
    std::printf("%s, %.3f B parameters, %.2f GB of weights, loaded in %.2f s, %.2f GB resident\n",
                info.architecture.c_str(), static_cast<double>(info.num_parameters) * 1e-9,
                static_cast<double>(info.weight_bytes) * 1e-9, load_seconds_,
                static_cast<double>(loaded_bytes_) * 1e-9);
    std::printf("%d threads, read rate %.1f GB/s (median of %zu, %.1f to %.1f)\n",
                pool_.num_threads(), median(rates_) * 1e-9, rates_.size(),
                *std::min_element(rates_.begin(), rates_.end()) * 1e-9,
                *std::max_element(rates_.begin(), rates_.end()) * 1e-9);
    double load = 0;
    if (::getloadavg(&load, 1) == 1 && load > 1.5 * pool_.num_threads()) {
      std::printf("the machine is busy (load average %.1f): these figures are noise\n", load);
    }
    std::printf("%-16s %10s %17s %9s %12s %10s %8s\n", "test", "tok/s", "spread", "GFLOP/s",
                "% of reads", "peer", "ratio");
    json::array cases;
    for (const Case& one : cases_) {
      const auto [low, high] = std::minmax_element(one.ours.begin(), one.ours.end());
      std::vector<double> parts;
      for (size_t i = 0; i < one.ceilings.size(); ++i) {
        parts.push_back(one.ours[i] / one.ceilings[i]);
      }
      const double gflops = matrix_gflops(one, median(one.ours));
      std::printf("%-16s %10.2f %8.2f %8.2f %9.0f", one.name.c_str(), median(one.ours), *low, *high,
                  gflops);
      if (parts.empty()) {
        std::printf(" %12s", "-");
      } else {
        std::printf(" %11.1f%%", 100 * median(parts));
      }
      json::object entry{{"test", one.name},
                         {"tokens_per_second", json::value_from(one.ours)},
                         {"median", median(one.ours)},
                         {"matrix_gflops", gflops}};
      if (!parts.empty()) {
        entry["bytes_per_step"] = one.bytes_per_step;
        entry["part_of_read_ceiling"] = median(parts);
      }
      if (!one.peers.empty()) {
        std::printf(" %10.2f %8.3f", median(one.peers), median(one.ours) / median(one.peers));
        entry["peer_tokens_per_second"] = json::value_from(one.peers);
        entry["ratio_to_peer"] = median(one.ours) / median(one.peers);
      }
      std::printf("\n");
      cases.push_back(std::move(entry));
    }
    if (options_.json_path.empty()) return;
    const json::object all{{"config", options_.config},
                           {"dtype", options_.dtype},
                           {"kv_dtype", options_.kv_dtype},
                           {"threads", pool_.num_threads()},
                           {"load_average", load},
                           {"num_parameters", info.num_parameters},
                           {"weight_bytes", info.weight_bytes},
                           {"load_seconds", load_seconds_},
                           {"resident_bytes", loaded_bytes_},
                           {"read_bytes_per_second", json::value_from(rates_)},
                           {"cases", std::move(cases)}};
    std::ofstream(options_.json_path) << json::serialize(all) << "\n";
  }

  const Options options_;
  WorkPool pool_;
  std::unique_ptr<Model> model_;
  KvType kv_type_ = KvType::kBFloat16;
  double hidden_size_ = 0;
  double load_seconds_ = 0;
  int64_t loaded_bytes_ = 0;
  std::vector<Case> cases_;
  std::vector<double> rates_;
};

}  // namespace
}  // namespace espalier::bench

int main(int argc, char** argv) {
  espalier::bench::Options options;
  CLI::App app(
      "Measures a model's decoding and prefill beside the machine's read rate and a peer.");
  app.add_option("--config", options.config, "folder with config.json, or a .gguf file")
      ->capture_default_str();
  app.add_option("--load-format", options.load_format, "dummy or auto")
      ->check(CLI::IsMember({"dummy", "auto"}))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "auto, bfloat16, float32, q8_0 or q4_k")
      ->capture_default_str();
  app.add_option("--kv-dtype", options.kv_dtype, "of keys and values")
      ->check(CLI::IsMember({"bfloat16", "float32"}))
      ->capture_default_str();
  app.add_option("--contexts", options.contexts, "tokens before decoding starts; several allowed")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  app.add_option("--entries", options.entries, "requests decoded at once; several allowed")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--prefill", options.prefill, "tokens")->check(CLI::PositiveNumber);
  app.add_option("--decode-steps", options.decode_steps, "tokens")->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats, "of everything")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "0: one a core")->check(CLI::NonNegativeNumber);
  auto* peer =
      app.add_option("--peer", options.peer, "a binary that takes llama-bench's arguments");
  app.add_option("--peer-model", options.peer_model, "its model file")->needs(peer);
  app.add_option("--peer-args", options.peer_args, "more arguments for it")->needs(peer);
  app.add_option("--json", options.json_path, "where to write all figures");
  CLI11_PARSE(app, argc, argv);
  espalier::set_log_level(espalier::LogLevel::kWarning);
  espalier::bench::Bench bench(std::move(options));
  if (const espalier::Status status = bench.run(); !status.ok()) {
    std::fprintf(stderr, "models_bench: %s\n", status.to_string().c_str());
    return 1;
  }
  return 0;
}
