// What Espalier does on the GPU, as numbers: decode steps, prefill, draft tokens, offline
// workloads, tiers. bench/gpu/run calls it beside ceilings and peers; alone:
//
//   gpu_bench --config bench/configs/llama_8b --part decode --json out.json
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "images_bench.h"
#include "lora_bench.h"
#include "models/expert_counts.h"
#include "offline_bench.h"
#include "ranks_bench.h"
#include "speech_bench.h"
#include "step_bench.h"
#include "step_table.h"
#include "tensor/cuda/device.h"
#include "texts_bench.h"
#include "tiers_bench.h"

namespace espalier::bench {
namespace {

namespace json = boost::json;

struct Options {
  std::string config = "bench/configs/llama_8b";
  std::string part = "decode";
  std::string dtype = "auto";
  std::string tokenizer = "share/default_model";
  std::string json_path;
  bool quick = false;
  bool no_graphs = false;
  bool no_early_launch = false;
  bool no_megakernel = false;
  bool deterministic = false;
  std::string kv_cache_dtype = "auto";
  std::string only;
  int32_t page_size = 1;
  int32_t tp = 1, ep = 1, pp = 1, micro_batch = 0;
  int32_t redundant = 0, rebalance_steps = 0;  // of experts in groups
  int32_t distinct_tokens = 0;
  bool dp_attention = false;
  std::vector<int32_t> entries, contexts, lengths, draft_tokens;  // empty: those of the part
  std::vector<double> acceptances = {0.6, 0.7, 0.8};
  bool no_cascade = false;
  int steps = 0;
};

constexpr uint64_t kSeed = 1;

StepBench::Limits limits(const Options& options) {
  return {.page_size = options.page_size,
          .graphs = !options.no_graphs,
          .allow_pdl = !options.no_early_launch,
          .megakernel = !options.no_megakernel,
          .cascade = !options.no_cascade,
          .deterministic = options.deterministic,
          .kv_e4m3 = options.kv_cache_dtype == "fp8_e4m3",
          .tp = options.tp,
          .pp = options.pp,
          .micro_batch = options.micro_batch,
          .distinct_tokens = options.distinct_tokens,
          .dp_attention = options.dp_attention};
}
ModelLoadOptions dummy_model(const Options& options) {
  return {.path = options.config,
          .format = LoadFormat::kDummy,
          .seed = kSeed,
          .dtype = options.dtype,
          .ep_size = options.ep,
          .enable_dp_attention = options.dp_attention,
          .experts = {.num_redundant = options.redundant}};
}

// What experts' tokens say since the call before.
class ExpertRows {
 public:
  // Null where the model's experts are not divided whole.
  ExpertCounts* counts(const Options& options) { return options.ep > 1 ? &counts_ : nullptr; }
  Status print(json::object& row) {
    ESP_ASSIGN_OR_RETURN(ExpertTotals now, counts_.read());
    const ExpertTotals since = difference(now, seen_);
    seen_ = std::move(now);
    if (since.tokens.empty()) return Status();
    const double balance = balance_of(since).over_groups;
    std::printf("        busiest_rank_over_mean %.3f, %lld experts moved\n", balance,
                static_cast<long long>(since.num_moved));
    row["busiest_rank_over_mean"] = balance;
    row["moved_experts"] = since.num_moved;
    return Status();
  }

 private:
  ExpertCounts counts_;
  ExpertTotals seen_;
};

json::object decode_row(const std::string& name, size_t entries, int64_t context_tokens,
                        const StepTimes& t) {
  std::printf(
      "%-24s %5zu entries %9.3f ms/step %9.0f tok/s  device %9.3f ms  launch %5.0f us  idle "
      "%.2f%%\n",
      name.c_str(), entries, t.step_seconds * 1e3, static_cast<double>(entries) / t.step_seconds,
      t.device_seconds * 1e3, t.launch_seconds * 1e6, t.idle * 100);
  std::fflush(stdout);
  return {{"name", name},
          {"entries", entries},
          {"context_tokens", context_tokens},
          {"step_seconds", t.step_seconds},
          {"device_seconds", t.device_seconds},
          {"launch_seconds", t.launch_seconds},
          {"idle", t.idle},
          {"gap_seconds", t.gap_seconds}};
}

Status decode_part(const Options& options, json::array& out) {
  ESP_ASSIGN_OR_RETURN(auto bench, StepBench::create(dummy_model(options), limits(options)));
  const std::vector<int32_t> entries =
      !options.entries.empty() ? options.entries
      : options.quick          ? std::vector<int32_t>{1, 16, 128}
                               : std::vector<int32_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  const std::vector<int32_t> contexts = !options.contexts.empty() ? options.contexts
                                        : options.quick
                                            ? std::vector<int32_t>{1024}
                                            : std::vector<int32_t>{128, 1024, 4096, 32768};
  const int steps = options.steps > 0 ? options.steps : options.quick ? 20 : 40;
  const auto run = [&](const std::string& name, const std::vector<int32_t>& all) -> Status {
    int64_t tokens = 0;
    for (const int32_t context : all) tokens += context;
    if (tokens + 64 * std::ssize(all) > bench->kv_tokens()) return Status();
    ESP_ASSIGN_OR_RETURN(const StepTimes times, bench->decode(all, steps));
    out.push_back(decode_row(name, all.size(), tokens, times));
    return Status();
  };
  for (const int32_t context : contexts) {
    for (const int32_t count : entries) {
      ESP_RETURN_IF_ERROR(run("decode at " + std::to_string(context),
                              std::vector<int32_t>(static_cast<size_t>(count), context)));
    }
  }
  if (!options.entries.empty()) return Status();
  std::vector<int32_t> mixed(31, 4096);
  mixed.push_back(131072 - 128);
  return run("mixed 31 x 4k, 1 x 128k", mixed);
}

Status prefill_part(const Options& options, json::array& out) {
  ExpertRows experts;
  ModelLoadOptions model = dummy_model(options);
  model.expert_counts = experts.counts(options);
  model.experts.rebalance.num_iterations = options.rebalance_steps;
  ESP_ASSIGN_OR_RETURN(auto bench, StepBench::create(model, limits(options)));
  const std::vector<int32_t> lengths = !options.lengths.empty() ? options.lengths
                                       : options.quick
                                           ? std::vector<int32_t>{512, 8192}
                                           : std::vector<int32_t>{512, 2048, 8192, 16384, 32768};
  for (const int32_t tokens : lengths) {
    ESP_ASSIGN_OR_RETURN(const double seconds, bench->prefill(tokens, options.quick ? 2 : 3));
    std::printf("prefill %6d tokens %9.2f ms %9.0f tok/s\n", tokens, seconds * 1e3,
                tokens / seconds);
    json::object row{{"name", "prefill"}, {"tokens", tokens}, {"seconds", seconds}};
    ESP_RETURN_IF_ERROR(experts.print(row));
    std::fflush(stdout);
    out.push_back(std::move(row));
  }
  return Status();
}

// Draft tokens against decode steps without them, two of which are in flight; of the part
// "draft_head" a head of the configuration's `draft` folder computes as many in each step.
Status speculation_part(const Options& options, json::array& out) {
  ModelLoadOptions model = dummy_model(options);
  if (options.part == "draft_head") model.draft_path = model.path / "draft";
  const auto or_these = [](const std::vector<int32_t>& given, std::vector<int32_t> these) {
    return given.empty() ? these : given;
  };
  const std::vector<int32_t> entries = or_these(options.entries, {1, 16, 64, 256});
  const std::vector<int32_t> counts = or_these(options.draft_tokens, {1, 2, 3, 4, 6, 8, 15});
  const std::vector<int32_t> contexts = or_these(options.contexts, {1024});
  const int steps = options.steps > 0 ? options.steps : options.quick ? 20 : 40;
  StepBench::Limits most = limits(options);
  most.max_draft_samples = 1024;
  ESP_ASSIGN_OR_RETURN(auto bench, StepBench::create(model, most));
  std::printf("%8s %8s %7s %7s %10s %12s %10s %10s %9s %10s %10s\n", "requests", "context",
              "drafts", "right", "tokens", "step ms", "of plain", "tokens/s", "of off", "verify",
              "a draft");
  for (const int32_t context : contexts) {
    for (const int32_t count : entries) {
      const std::vector<int32_t> all(static_cast<size_t>(count), context);
      ESP_ASSIGN_OR_RETURN(const StepTimes plain, bench->decode(all, steps));
      const double off = count / plain.step_seconds;
      std::printf("%8d %8d %7d %7s %10.2f %12.3f %10.3f %10.0f %9.2f\n", count, context, 0, "", 1.0,
                  plain.device_seconds * 1e3, 1.0, off, 1.0);
      for (const int32_t draft : counts) {
        if (draft * count > most.max_draft_samples) continue;
        for (const double acceptance : options.acceptances) {
          ESP_ASSIGN_OR_RETURN(const SpeculationTimes t,
                               bench->speculate(all, draft, acceptance, steps));
          const double of_plain = t.device_seconds / plain.device_seconds;
          const double verify = (t.device_seconds - t.head_seconds) / plain.device_seconds;
          const double drafting = t.head_seconds / draft / plain.device_seconds;
          std::printf("%8d %8d %7d %7.2f %10.2f %12.3f %10.3f %10.0f %9.2f %10.3f %10.3f\n", count,
                      context, draft, acceptance, t.tokens_per_entry, t.device_seconds * 1e3,
                      of_plain, t.tokens_per_second, t.tokens_per_second / off, verify, drafting);
          std::fflush(stdout);
          out.push_back(json::object{{"entries", count},
                                     {"context", context},
                                     {"draft_tokens", draft},
                                     {"acceptance", acceptance},
                                     {"tokens_per_entry", t.tokens_per_entry},
                                     {"device_seconds", t.device_seconds},
                                     {"head_seconds", t.head_seconds},
                                     {"step_seconds", t.step_seconds},
                                     {"plain_device_seconds", plain.device_seconds},
                                     {"tokens_per_second", t.tokens_per_second},
                                     {"off_tokens_per_second", off}});
        }
      }
    }
  }
  return Status();
}

Status ranks_part(const Options& options, json::array& out) {
  ESP_ASSIGN_OR_RETURN(const auto rows, time_all_reduces(options.tp));
  std::printf("all-reduce of %d ranks, microseconds\n%10s %10s %10s %10s %10s\n", options.tp,
              "bytes", "message", "and norm", "in place", "NCCL");
  for (const AllReduceTime& row : rows) {
    std::printf("%10lld %10.2f %10.2f %10.2f %10.2f\n", static_cast<long long>(row.bytes),
                row.message_us, row.fused_us, row.in_place_us, row.nccl_us);
    out.push_back(json::object{{"bytes", row.bytes},
                               {"message_us", row.message_us},
                               {"fused_us", row.fused_us},
                               {"in_place_us", row.in_place_us},
                               {"nccl_us", row.nccl_us}});
  }
  ESP_ASSIGN_OR_RETURN(const auto gathers, time_gathers(options.tp));
  for (const GatherTime& row : gathers) {
    std::printf("gather of logits %6d rows %10.2f us\n", row.rows, row.us);
    out.push_back(json::object{{"gathered_rows", row.rows}, {"us", row.us}});
  }
  return Status();
}

// Whether a workload's name begins with one of the texts of --only, which "|" separates.
bool is_wanted(std::string_view name, std::string_view only) {
  while (true) {
    const size_t end = only.find('|');
    if (name.starts_with(only.substr(0, end))) return true;
    if (end == only.npos) return false;
    only.remove_prefix(end + 1);
  }
}

Status offline_part(const Options& options, json::array& out) {
  const bool has_head = std::filesystem::exists(std::filesystem::path(options.config) / "draft");
  for (const OfflineWorkload& workload : offline_workloads(options.part, options.quick)) {
    if (!is_wanted(workload.name, options.only)) continue;
    if (workload.speculative_algorithm == "EAGLE3" && !has_head) continue;
    ESP_ASSIGN_OR_RETURN(const OfflineResult r,
                         run_offline(workload, options.config, options.dtype,
                                     options.kv_cache_dtype, options.tokenizer, kSeed));
    std::printf(
        "%-44s %8.1f s %9.0f out tok/s %9.0f in tok/s  cached %4.1f%%  device idle %.2f%%  host "
        "%.0f us/step\n",
        workload.name.c_str(), r.seconds, r.output_tokens / r.seconds, r.prompt_tokens / r.seconds,
        100.0 * r.cached_tokens / r.prompt_tokens, 100 * (1 - r.forward_seconds / r.seconds),
        r.host_seconds / r.steps * 1e6);
    if (r.tokens_per_verification > 0)
      std::printf("%-44s %8.2f tokens an entry with draft tokens\n", "", r.tokens_per_verification);
    const double busy = busy_tokens_per_second(r.profile, workload.max_running);
    if (workload.profiles)
      std::printf("%-44s %8.0f out tok/s while all requests of a batch run\n", "", busy);
    if (workload.profiles && !options.quick) print_steps(group_steps(r.profile));
    std::fflush(stdout);
    out.push_back(json::object{{"name", workload.name},
                               {"requests", workload.num_requests},
                               {"batch", workload.max_running},
                               {"input", workload.input_tokens},
                               {"output", workload.output_tokens},
                               {"seconds", r.seconds},
                               {"prompt_tokens", r.prompt_tokens},
                               {"output_tokens", r.output_tokens},
                               {"cached_tokens", r.cached_tokens},
                               {"steps", r.steps},
                               {"forward_seconds", r.forward_seconds},
                               {"host_seconds", r.host_seconds},
                               {"busy_tokens_per_second", busy},
                               {"each_step", steps_json(r.profile)}});
  }
  return Status();
}

Status lora_part(const Options& options, json::array& out) {
  LoraBenchOptions lora{.model = dummy_model(options),
                        .limits = limits(options),
                        .context = options.contexts.empty() ? 1024 : options.contexts[0],
                        .steps = options.steps > 0 ? options.steps
                                 : options.quick   ? 20
                                                   : 40};
  if (!options.entries.empty()) lora.entries = options.entries[0];
  return run_lora_bench(lora, [&](const LoraRow& row) {
    std::printf("%-52s %10.3f ms", row.name.c_str(), row.seconds * 1e3);
    if (row.of_base > 0) std::printf("  %5.3f of the base", row.of_base);
    std::printf("\n");
    std::fflush(stdout);
    out.push_back(
        json::object{{"name", row.name}, {"seconds", row.seconds}, {"of_base", row.of_base}});
  });
}

Status tiers_part(const Options& options, json::array& out) {
  ESP_ASSIGN_OR_RETURN(const auto rows,
                       run_tiers({.config = options.config,
                                  .only = options.only,
                                  .page_size = options.page_size == 1 ? 16 : options.page_size,
                                  .seed = kSeed,
                                  .quick = options.quick}));
  for (const TiersRow& row : rows) {
    std::printf("%-72s %12.2f %s\n", row.name.c_str(), row.value, row.unit.c_str());
    out.push_back(json::object{{"name", row.name}, {"value", row.value}, {"unit", row.unit}});
  }
  return Status();
}

ReportImagesRow row_reporter(json::array& out) {
  return [&out](const ImagesRow& row) {
    std::printf("%-72s %12.2f %s\n", row.name.c_str(), row.value, row.unit.c_str());
    std::fflush(stdout);
    out.push_back(json::object{{"name", row.name}, {"value", row.value}, {"unit", row.unit}});
  };
}

Status images_part(const Options& options, json::array& out) {
  return run_images_bench({.config = options.config,
                           .dtype = options.dtype,
                           .only = options.only,
                           .seed = kSeed,
                           .quick = options.quick},
                          row_reporter(out));
}

Status texts_part(const Options& options, json::array& out) {
  return run_texts_bench({.config = options.config,
                          .dtype = options.dtype,
                          .only = options.only,
                          .seed = kSeed,
                          .quick = options.quick},
                         row_reporter(out));
}

Status speech_part(const Options& options, json::array& out) {
  return run_speech_bench(
      {.config = options.config, .dtype = options.dtype, .seed = kSeed, .quick = options.quick},
      row_reporter(out));
}

Status run(const Options& options) {
  if (options.dp_attention && (options.part != "decode" || options.tp == 1 || options.pp > 1))
    return invalid_argument("--dp-attention is of --part decode on several GPUs (--tp)");
  ESP_ASSIGN_OR_RETURN(const cuda::DeviceInfo device, cuda::open_device());
  json::array rows;
  if (options.part == "decode") {
    ESP_RETURN_IF_ERROR(decode_part(options, rows));
  } else if (options.part == "prefill") {
    ESP_RETURN_IF_ERROR(prefill_part(options, rows));
  } else if (options.part == "speculation" || options.part == "draft_head") {
    ESP_RETURN_IF_ERROR(speculation_part(options, rows));
  } else if (options.part == "ranks") {
    ESP_RETURN_IF_ERROR(ranks_part(options, rows));
  } else if (options.part == "lora") {
    ESP_RETURN_IF_ERROR(lora_part(options, rows));
  } else if (options.part == "tiers") {
    ESP_RETURN_IF_ERROR(tiers_part(options, rows));
  } else if (options.part == "images") {
    ESP_RETURN_IF_ERROR(images_part(options, rows));
  } else if (options.part == "embed") {
    ESP_RETURN_IF_ERROR(texts_part(options, rows));
  } else if (options.part == "speech") {
    ESP_RETURN_IF_ERROR(speech_part(options, rows));
  } else {
    ESP_RETURN_IF_ERROR(offline_part(options, rows));
  }
  if (options.json_path.empty()) return Status();
  std::ofstream file(options.json_path);
  file << json::serialize(json::object{{"device", device.name},
                                       {"part", options.part},
                                       {"config", options.config},
                                       {"rows", rows}})
       << "\n";
  return file ? Status() : invalid_argument("cannot write {}", options.json_path);
}

}  // namespace
}  // namespace espalier::bench

int main(int argc, char** argv) {
  espalier::bench::Options options;
  CLI::App app{"Decode steps, prefill and offline workloads of a model on the GPU."};
  app.add_option("--config", options.config, "folder with config.json; weights are drawn");
  app.add_option("--dtype", options.dtype, "of the weights: auto, fp8, int4, nvfp4 or mxfp4");
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype, "of keys and values")
      ->check(CLI::IsMember({"auto", "fp8_e4m3"}));
  app.add_option("--part", options.part, "what to measure")
      ->check(CLI::IsMember({"decode", "prefill", "speculation", "draft_head", "lora", "ranks",
                             "tiers", "images", "speech", "embed", "offline", "lengths", "shared",
                             "grammars", "drafters"}));
  app.add_option("--tokenizer", options.tokenizer, "folder or file, of grammars' workloads");
  app.add_option("--json", options.json_path, "write the rows there");
  app.add_option("--tp", options.tp,
                 "GPUs that compute the model together, of decode, prefill, ranks")
      ->check(CLI::Range(1, 8));
  app.add_option("--pp", options.pp,
                 "stages of a pipeline, of --tp GPUs each, of decode and prefill")
      ->check(CLI::Range(1, 8));
  app.add_option("--micro-batch", options.micro_batch,
                 "tokens of a stage's micro-batch (0: chosen)");
  app.add_option("--ep", options.ep, "groups of these GPUs with whole experts; divides --tp")
      ->check(CLI::Range(1, 8));
  app.add_flag("--dp-attention", options.dp_attention,
               "each of --tp GPUs has requests of its own, with keys and values of these alone; of "
               "decode");
  app.add_option("--redundant", options.redundant, "slots of a layer beyond its experts");
  app.add_option("--eplb", options.rebalance_steps,
                 "steps after which experts move between groups, of prefill; 0: they stay");
  app.add_option("--distinct-tokens", options.distinct_tokens,
                 "that prompts are made of; few choose few experts")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--page-size", options.page_size, "tokens in a page; of tiers 16 or more")
      ->check(CLI::Range(1, 1024));
  app.add_option("--entries", options.entries, "of decode")->delimiter(',');
  app.add_option("--contexts", options.contexts, "of decode, tokens")->delimiter(',');
  app.add_option("--draft-tokens", options.draft_tokens, "draft tokens of a request")
      ->delimiter(',');
  app.add_option("--acceptances", options.acceptances, "probabilities that a draft token is right")
      ->delimiter(',');
  app.add_flag("--no-cascade", options.no_cascade,
               "rows of draft tokens read their common prefix each");
  app.add_option("--lengths", options.lengths, "of prefill, tokens")->delimiter(',');
  app.add_option("--steps", options.steps, "of decode, timed");
  app.add_flag("--quick", options.quick, "fewer and shorter rows");
  app.add_flag("--no-graphs", options.no_graphs, "launch every kernel by itself");
  app.add_flag("--no-early-launch", options.no_early_launch,
               "no kernel starts before the one in front of it has ended");
  app.add_flag("--no-megakernel", options.no_megakernel, "one entry's layers run kernel by kernel");
  app.add_option(
      "--only", options.only,
      "workloads whose names begin with this, or one of several between |; kinds of rows of "
      "tiers and images whose names contain it");
  app.add_flag("--deterministic", options.deterministic, "results independent of the batch");
  CLI11_PARSE(app, argc, argv);
  espalier::set_log_level(espalier::LogLevel::kWarning);
  const espalier::Status status = espalier::bench::run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "gpu_bench: %s\n", status.to_string().c_str());
  return 1;
}
